//! PURE: when nodes may be taken down. Windows recur by weekday in a time zone of their own, exclusions always win, and
//! KubeOS's `timewindow` is a window with exclusive bounds. The time-zone database is compiled in; neither the clock nor
//! `TZ` is read here.

use jiff::civil::{Date, DateTime, Time as CivilTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};

use crate::api::{ExclusionSpec, TimeWindow, WindowSpec};

#[cfg(test)]
mod tests;

/// How far ahead the next opening or closing is looked for, in days.
const HORIZON_DAYS: i32 = 400;
const DAY_SECS: u32 = 24 * 60 * 60;

/// What is wrong with a window; the message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct WindowError {
    /// Path of the field below `spec`.
    pub field: String,
    /// What was found and what is expected.
    pub problem: String,
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> WindowError {
    WindowError {
        field: field.into(),
        problem: problem.into(),
    }
}

/// Whether nodes may be taken down at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// Yes, until `closes` (`None` = for longer than anybody plans).
    Open {
        /// First instant at which it is shut again.
        closes: Option<Timestamp>,
    },
    /// No, until `opens` (`None` = never again).
    Shut {
        /// First instant at which it is open.
        opens: Option<Timestamp>,
    },
}

impl WindowState {
    /// Whether it is open.
    pub fn is_open(self) -> bool {
        matches!(self, WindowState::Open { .. })
    }

    /// When it closes, if it is open and closes.
    pub fn closes(self) -> Option<Timestamp> {
        match self {
            WindowState::Open { closes } => closes,
            WindowState::Shut { .. } => None,
        }
    }
}

/// All windows of one `OS`, validated. The empty schedule is always open.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    windows: Vec<Window>,
    once: Option<Interval>,
    exclusions: Vec<Interval>,
}

/// Half-open: `from` is in, `to` is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    from: Timestamp,
    to: Timestamp,
}

impl Interval {
    fn has(self, t: Timestamp) -> bool {
        self.from <= t && t < self.to
    }
}

#[derive(Clone, Debug)]
struct Window {
    /// Start days; empty = every day.
    days: Vec<Weekday>,
    /// Seconds of the day.
    start: u32,
    /// Seconds of the day, 86,400 included.
    end: u32,
    zone: TimeZone,
    /// KubeOS's form: the first bound is not in.
    exclusive_start: bool,
}

impl Schedule {
    /// Validates the three fields of a spec. `legacy_zone` is the zone of `timewindow`.
    pub fn parse(
        windows: &[WindowSpec],
        exclusions: &[ExclusionSpec],
        legacy: Option<&TimeWindow>,
        legacy_zone: &TimeZone,
    ) -> Result<Schedule, WindowError> {
        let mut schedule = Schedule::default();
        for (i, w) in windows.iter().enumerate() {
            schedule.windows.push(window(&format!("windows[{i}]"), w)?);
        }
        for (i, x) in exclusions.iter().enumerate() {
            schedule
                .exclusions
                .push(exclusion(&format!("exclusions[{i}]"), x)?);
        }
        if let Some(legacy) = legacy {
            if !windows.is_empty() {
                return Err(wrong("timewindow", "stands beside windows; keep one of the two"));
            }
            match legacy_window(legacy, legacy_zone)? {
                Legacy::Daily(w) => schedule.windows.push(w),
                Legacy::Once(i) => schedule.once = Some(i),
            }
        }
        Ok(schedule)
    }

    /// Whether nodes may be taken down at `now`, and until or from when.
    pub fn at(&self, now: Timestamp) -> WindowState {
        if self.allows(now) {
            WindowState::Open {
                closes: self.closes(now),
            }
        } else {
            WindowState::Shut {
                opens: self.opens(now),
            }
        }
    }

    fn always(&self) -> bool {
        self.windows.is_empty() && self.once.is_none()
    }

    fn allows(&self, t: Timestamp) -> bool {
        !self.exclusions.iter().any(|x| x.has(t)) && (self.always() || self.around(t).any(|i| i.has(t)))
    }

    /// Intervals that may hold `t` or begin within a day after it.
    fn around(&self, t: Timestamp) -> impl Iterator<Item = Interval> + '_ {
        let recurring = self.windows.iter().flat_map(move |w| {
            let day = w.zone.to_datetime(t).date();
            (-2..=1).filter_map(move |d| w.on(shift(day, d)?))
        });
        self.once.into_iter().chain(recurring)
    }

    fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        let excluded = self
            .exclusions
            .iter()
            .map(|x| x.from)
            .filter(|from| *from > now)
            .min();
        if self.always() {
            return excluded;
        }
        let limit = now
            .checked_add(SignedDuration::from_hours(24 * i64::from(HORIZON_DAYS)))
            .ok()?;
        let mut end = now;
        // Windows that touch or overlap are one: go on from the end of each.
        while let Some(next) = self.around(end).filter(|i| i.has(end)).map(|i| i.to).max() {
            end = next;
            if excluded.is_some_and(|x| x <= end) {
                return excluded;
            }
            if end > limit {
                return None;
            }
        }
        Some(end)
    }

    fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        // It can only open where a window begins or an exclusion ends.
        let starts = self.windows.iter().flat_map(|w| {
            let day = w.zone.to_datetime(now).date();
            (-1..=HORIZON_DAYS)
                .filter_map(move |d| w.on(shift(day, d)?))
                .map(|i| i.from)
        });
        let ends = self.exclusions.iter().map(|x| x.to);
        let mut times: Vec<Timestamp> = starts
            .chain(ends)
            .chain(self.once.map(|i| i.from))
            .filter(|t| *t > now)
            .collect();
        times.sort_unstable();
        times.into_iter().find(|t| self.allows(*t))
    }
}

impl Window {
    /// The interval that begins on `day`, if one does.
    fn on(&self, day: Date) -> Option<Interval> {
        if !self.days.is_empty() && !self.days.contains(&day.weekday()) {
            return None;
        }
        let end_day = if self.end <= self.start {
            shift(day, 1)?
        } else {
            day
        };
        let from = instant(&self.zone, day, self.start, Bound::Start)?;
        let from = if self.exclusive_start {
            from.checked_add(SignedDuration::from_nanos(1)).ok()?
        } else {
            from
        };
        let to = instant(&self.zone, end_day, self.end, Bound::End)?;
        (from < to).then_some(Interval { from, to })
    }
}

#[derive(Clone, Copy)]
enum Bound {
    Start,
    End,
}

fn shift(day: Date, days: i32) -> Option<Date> {
    day.checked_add(Span::new().days(i64::from(days))).ok()
}

/// A local time as an instant. In a gap: the end of the gap. In a repeated hour: the first for a start, the second for an end.
fn instant(zone: &TimeZone, day: Date, secs: u32, bound: Bound) -> Option<Timestamp> {
    let (day, secs) = if secs >= DAY_SECS {
        (shift(day, 1)?, secs - DAY_SECS)
    } else {
        (day, secs)
    };
    let time = CivilTime::new((secs / 3600) as i8, (secs / 60 % 60) as i8, (secs % 60) as i8, 0).ok()?;
    local(zone, DateTime::from_parts(day, time), bound)
}

fn local(zone: &TimeZone, at: DateTime, bound: Bound) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(at).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(at).ok(),
        // Read with the later offset the time lies before the jump; the jump is the end of the gap.
        AmbiguousOffset::Gap { after, .. } => {
            let before = after.to_timestamp(at).ok()?;
            zone.following(before).next().map(|jump| jump.timestamp())
        }
        AmbiguousOffset::Fold { before, after } => match bound {
            Bound::Start => before.to_timestamp(at).ok(),
            Bound::End => after.to_timestamp(at).ok(),
        },
    }
}

fn window(field: &str, spec: &WindowSpec) -> Result<Window, WindowError> {
    let start = hhmm(&spec.start).filter(|s| *s < DAY_SECS);
    let start = start.ok_or_else(|| {
        wrong(
            format!("{field}.start"),
            expected("HH:MM from 00:00 to 23:59", &spec.start),
        )
    })?;
    let end = hhmm(&spec.end).ok_or_else(|| {
        wrong(
            format!("{field}.end"),
            expected("HH:MM from 00:00 to 24:00", &spec.end),
        )
    })?;
    if start == end {
        return Err(wrong(
            field,
            format!(
                "start and end are both {}; for a whole day write 00:00 to 24:00",
                spec.start
            ),
        ));
    }
    let mut days = Vec::new();
    for d in &spec.days {
        days.push(weekday(d).ok_or_else(|| {
            wrong(
                format!("{field}.days"),
                expected("Mon, Tue, Wed, Thu, Fri, Sat or Sun", d),
            )
        })?);
    }
    let name = spec.timezone.as_deref().unwrap_or("UTC");
    let zone = zone(name).ok_or_else(|| {
        wrong(
            format!("{field}.timezone"),
            expected(
                "a name of the IANA time-zone database such as Europe/Berlin",
                name,
            ),
        )
    })?;
    Ok(Window {
        days,
        start,
        end,
        zone,
        exclusive_start: false,
    })
}

fn exclusion(field: &str, spec: &ExclusionSpec) -> Result<Interval, WindowError> {
    let at = |name: &str, text: &str| {
        text.parse::<Timestamp>().map_err(|_| {
            wrong(
                format!("{field}.{name}"),
                expected("a time with offset (RFC 3339) such as 2026-12-24T00:00:00Z", text),
            )
        })
    };
    let (from, to) = (at("from", &spec.from)?, at("to", &spec.to)?);
    if to <= from {
        return Err(wrong(
            field,
            format!("to ({}) is not after from ({})", spec.to, spec.from),
        ));
    }
    Ok(Interval { from, to })
}

enum Legacy {
    Daily(Window),
    Once(Interval),
}

fn legacy_window(spec: &TimeWindow, zone: &TimeZone) -> Result<Legacy, WindowError> {
    let (s, e) = (spec.starttime.trim(), spec.endtime.trim());
    if s == e {
        return Err(wrong(
            "timewindow",
            format!("starttime and endtime are both {s:?}; such a window never opens"),
        ));
    }
    match (hhmmss(s), hhmmss(e), date_time(s), date_time(e)) {
        (Some(start), Some(end), ..) => Ok(Legacy::Daily(Window {
            days: Vec::new(),
            start,
            end,
            zone: zone.clone(),
            exclusive_start: true,
        })),
        (.., Some(start), Some(end)) => {
            let bounds = local(zone, start, Bound::Start).zip(local(zone, end, Bound::End));
            let (from, to) = bounds.ok_or_else(|| wrong("timewindow", "a bound is out of range"))?;
            let from = from.checked_add(SignedDuration::from_nanos(1)).unwrap_or(from);
            if to <= from {
                return Err(wrong(
                    "timewindow",
                    format!(
                        "endtime {e} is not after starttime {s}; only the form HH:MM:SS crosses midnight"
                    ),
                ));
            }
            Ok(Legacy::Once(Interval { from, to }))
        }
        (Some(_), None, _, Some(_)) | (None, Some(_), Some(_), None) => Err(wrong(
            "timewindow",
            "starttime and endtime must have the same form, both with or both without a date",
        )),
        (start, _, start_date, _) => {
            let (field, text) = if start.is_none() && start_date.is_none() {
                ("starttime", s)
            } else {
                ("endtime", e)
            };
            Err(wrong(
                format!("timewindow.{field}"),
                expected("HH:MM:SS or YYYY-MM-DD HH:MM:SS", text),
            ))
        }
    }
}

fn expected(what: &str, found: &str) -> String {
    format!("expected {what}, found {found:?}")
}

/// A zone of the compiled-in database.
pub fn zone(name: &str) -> Option<TimeZone> {
    if name.eq_ignore_ascii_case("UTC") {
        return Some(TimeZone::UTC);
    }
    jiff::tz::TimeZoneDatabase::bundled().get(name).ok()
}

fn weekday(text: &str) -> Option<Weekday> {
    let lower = text.trim().to_ascii_lowercase();
    let all = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    all.into_iter()
        .find(|(name, _)| lower == *name || lower == name[..3])
        .map(|(_, day)| day)
}

fn two_digits(text: &str) -> Option<u32> {
    (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

/// `HH:MM` in seconds of the day, 24:00 included.
fn hhmm(text: &str) -> Option<u32> {
    let (h, m) = text.trim().split_once(':')?;
    let (h, m) = (two_digits(h)?, two_digits(m)?);
    ((h < 24 && m < 60) || (h == 24 && m == 0)).then_some(h * 3600 + m * 60)
}

/// `HH:MM:SS` in seconds of the day.
fn hhmmss(text: &str) -> Option<u32> {
    let (hm, s) = text.rsplit_once(':')?;
    let (hm, s) = (hhmm(hm).filter(|t| *t < DAY_SECS)?, two_digits(s)?);
    (s < 60).then_some(hm + s)
}

/// `YYYY-MM-DD HH:MM:SS`.
fn date_time(text: &str) -> Option<DateTime> {
    let (day, time) = text.split_once(' ')?;
    let secs = hhmmss(time.trim())?;
    let mut parts = day.split('-');
    let (y, m, d) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || y.len() != 4 {
        return None;
    }
    let date = Date::new(y.parse().ok()?, two_digits(m)? as i8, two_digits(d)? as i8).ok()?;
    let time = CivilTime::new((secs / 3600) as i8, (secs / 60 % 60) as i8, (secs % 60) as i8, 0).ok()?;
    Some(DateTime::from_parts(date, time))
}
