"""Learning quality: bits per byte against wall-clock, our default recipe beside nanoGPT's and transformers' Trainer."""
