from hotdraft.pipeline.system.log_tail import log_tail


def test_log_tail_shows_what_a_terminal_would(tmp_path):
    (tmp_path / "log").write_bytes(b"one\n\x1b[32mtwo\x1b[0m\n\n10%\r20%\r\x1b[A30%\n")
    assert log_tail(tmp_path / "log", 2) == "two\n30%"
    assert log_tail(tmp_path / "absent") == ""
