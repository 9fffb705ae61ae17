"""Pure core: vocabulary, errors, interfaces and the scheduler. No I/O, no clock; `now` is an argument."""
