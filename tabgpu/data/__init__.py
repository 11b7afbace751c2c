"""From files to rows: reading ahead, joins, derived columns, splits, the target."""
