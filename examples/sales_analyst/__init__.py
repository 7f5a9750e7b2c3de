"""A sales analyst whose session is kept, brought back on the next day, and told what changed meanwhile."""
