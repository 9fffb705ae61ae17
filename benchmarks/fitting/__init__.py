"""Recomputes the constants of `backends.engine.hardware` from published measurements.

    python -m benchmarks.fitting --data DIR

prints each fitted constant beside the committed one, with the error of the fit. DIR holds the folders
`vidur_profiles`, `helix`, `aibrix_vllm_llama31_8b` and the files `wlb_attention_profile_a100_80gb.csv` and
`vllm_throughput_a100_tesla.csv`; the environment variable HEADWAY_DATA stands in for `--data`.
"""
