"""The simulation of pipelines in Cython: the modules `engine` and `schedulers` of `benchmarks.pipelines`, with types."""
