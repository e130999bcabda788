#!/usr/bin/env python3
"""Writes cases.tsv: windows judged by Python's zoneinfo, independently of our code.

zone, days, start, end, instant (UTC seconds), open (0/1). The rules: [start, end) belongs to the start day; a bound inside
a gap moves to the end of the gap; a repeated hour counts from its first start to its second end.
"""
import random
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

NAMES = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


def to_instant(zone, day, minutes, end):
    local = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)
    first, second = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    a, b = first.astimezone(timezone.utc), second.astimezone(timezone.utc)
    exists = a.astimezone(zone).replace(tzinfo=None) == local
    if not exists:
        # Minute by minute to the first local time that exists.
        probe = local
        while True:
            probe += timedelta(minutes=1)
            t = probe.replace(tzinfo=zone, fold=0).astimezone(timezone.utc)
            if t.astimezone(zone).replace(tzinfo=None) == probe:
                return t
    return b if end else a


def is_open(zone, days, start, end, t):
    today = t.astimezone(zone).date()
    for back in range(-2, 3):
        day = today + timedelta(days=back)
        if days and NAMES[day.weekday()] not in days:
            continue
        e = end + 24 * 60 if end <= start else end
        a, b = to_instant(zone, day, start, False), to_instant(zone, day, e, True)
        if a <= t < b:
            return True
    return False


def hhmm(m):
    return f"{m // 60:02}:{m % 60:02}"


def main():
    rnd = random.Random(20)
    # zone, a day with a change of clocks there, or none
    places = [
        ("Europe/Berlin", (2026, 3, 29)), ("Europe/Berlin", (2026, 10, 25)), ("America/New_York", (2026, 3, 8)),
        ("America/New_York", (2026, 11, 1)), ("Australia/Lord_Howe", (2026, 4, 5)), ("Australia/Lord_Howe", (2026, 10, 4)),
        ("Asia/Kolkata", (2026, 6, 1)), ("America/Sao_Paulo", (2018, 11, 4)), ("Africa/Cairo", (2026, 4, 24)),
        ("Asia/Shanghai", (2026, 2, 28)), ("Pacific/Apia", (2011, 12, 30)), ("UTC", (2028, 2, 29)),
    ]
    rows = []
    for name, date in places:
        zone = ZoneInfo(name)
        for _ in range(25):
            start = rnd.choice([0, 30, 60, 90, 120, 135, 150, 180, 22 * 60, 23 * 60 + 30, rnd.randrange(1440)])
            end = rnd.choice([0, 60, 90, 120, 150, 165, 180, 240, 1440, rnd.randrange(1441)])
            if start == end:
                end = (end + 75) % 1440
            days = sorted(rnd.sample(NAMES, rnd.randrange(0, 5)), key=NAMES.index)
            base = datetime(*date, tzinfo=timezone.utc) + timedelta(days=rnd.randrange(-1, 2))
            edge = to_instant(zone, base.date(), rnd.choice([start, end]), rnd.random() < 0.5)
            t = rnd.choice([edge, edge - timedelta(seconds=1), edge + timedelta(seconds=1),
                            base + timedelta(minutes=rnd.randrange(-600, 2000))])
            rows.append((name, ",".join(days), hhmm(start), hhmm(end), int(t.timestamp()),
                         int(is_open(zone, days, start, end, t))))
    with open("cases.tsv", "w") as out:
        for row in rows:
            out.write("\t".join(str(c) for c in row) + "\n")
    print(len(rows), "cases,", sum(r[5] for r in rows), "open")


main()
