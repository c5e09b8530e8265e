-- call: window_end()
-- returns: BIGINT
-- meaning: Device time before which the window ends that the session looks through; without one just after the last
--   event.
-- reads: window
--
getvariable('window_end')
