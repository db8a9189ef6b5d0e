"""The loop: gradients, compiled blocks, storage, tuning, the audit."""
