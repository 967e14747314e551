-- Indexes that queries like and inserts cannot afford (they cost five times the insert): dropped while a recording is
-- written, made when it closes.

CREATE INDEX IF NOT EXISTS raw_events_op ON raw_events(source, op, duration_ns);
CREATE INDEX IF NOT EXISTS raw_events_process ON raw_events(process, start_ns);
