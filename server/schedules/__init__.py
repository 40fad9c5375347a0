"""Recurring schedules, and what becomes of local times when the rules of a zone change."""
