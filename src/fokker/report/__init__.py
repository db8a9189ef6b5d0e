"""What people look at: pictures and pages, made from a run alone."""
