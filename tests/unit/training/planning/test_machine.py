from hotdraft.training.planning.machine import memory_limits


def test_memory_limits_of_control_groups(tmp_path):
    def limit(folder: str, name: str, text: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)

    own = tmp_path / "cgroup"
    own.write_text("0::/pod/box\n")
    limit("pod/box", "memory.max", "max\n")
    limit("pod", "memory.max", "3000\n")
    assert list(memory_limits(tmp_path, own)) == [3000]
    own.write_text("4:memory:/job\n3:cpuset:/pod\n")
    limit("memory/job", "memory.limit_in_bytes", "2000\n")
    limit("memory", "memory.limit_in_bytes", "9000\n")
    assert list(memory_limits(tmp_path, own)) == [2000, 9000]
    assert list(memory_limits(tmp_path, tmp_path / "absent")) == []
