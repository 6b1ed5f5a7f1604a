"""Elastic jobs of `tfring run`: workers come and go with hosts, and training goes on."""
