"""Capacity planning for LLM inference on vLLM: config.json -> KV layout -> memory -> speed -> cost -> Plan. Pure."""
