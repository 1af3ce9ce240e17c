"""What running vLLM servers say: /metrics text -> Samples -> Snapshot -> Window. Only scrape.py opens sockets."""
