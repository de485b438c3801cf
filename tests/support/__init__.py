"""What tests share: scripted denoisers, small checkpoints, the command line."""
