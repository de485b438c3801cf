"""Running methods on tasks: recipes, runs that survive a crash, statistics, reports."""
