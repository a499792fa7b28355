"""The main job: plan, count, train, tokenize, manifest."""
