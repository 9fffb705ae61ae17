from tests.records import make_decision, make_record

__all__ = ["make_decision", "make_record"]
