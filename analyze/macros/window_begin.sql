-- call: window_begin()
-- returns: BIGINT
-- meaning: Device time at which the window begins that the session looks through; without one that of the first event.
-- reads: window
--
getvariable('window_begin')
