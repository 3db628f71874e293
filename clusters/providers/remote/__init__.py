"""Acting on machines over SSH, wherever they come from: sessions, programs, rules, probes."""
