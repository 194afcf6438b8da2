"""Coordinates for the eye, each with its trustworthiness."""
