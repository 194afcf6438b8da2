"""Room analysis."""
