"""Programs that use a GPU the way real ones do: a trainer, an inference server, call-rate and never-harm programs."""
