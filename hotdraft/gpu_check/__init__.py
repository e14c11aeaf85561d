"""`hotdraft gpu-check`: what of hotdraft runs on a GPU, whether it is right there, and how fast."""
