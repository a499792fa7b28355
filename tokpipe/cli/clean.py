"""`tokpipe clean`: remove what nothing names."""

from __future__ import annotations

import json

import click

from tokpipe.build import clean as run_clean


@click.command()
@click.argument("data")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="The names as JSON on stdout.")
def clean(data: str, dry_run: bool, as_json: bool) -> None:
    """Remove files that no receipt names.

    Such files are left by tasks that were killed, and by attempts on object stores that came second. DATA is the folder of a
    build; none may be running there.
    """
    removed = run_clean(data, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(removed, indent=2))
        return
    for name in removed:
        click.echo(name)
    click.echo(f"{len(removed):,} leftovers {'would be removed' if dry_run else 'removed'}.", err=True)
