"""Several processes with one store; some are killed in the middle of an operation."""

from __future__ import annotations

import random
import time

from store_tools import programs

from tfring.job.store import StoreConnectionError


def test_processes_count_together(tcp):
    code = f"""
        store = {tcp.code}
        store.wait(["start"])
        for _ in range(100):
            store.add("n", 1)
        store.add("ended", 1)
        print("done")
    """
    store = tcp.client()
    with programs(code, code, code) as started:
        store.set("start", b"")
        assert [process.stdout.readline() for process in started] == ["done\n"] * 3
        assert [process.wait(60) for process in started] == [0, 0, 0]
    assert (store.get("n"), store.get("ended")) == (b"300", b"3")


def test_clients_that_are_killed_leave_the_store_whole(tcp):
    """Each may have had one operation in flight; all acknowledged ones have happened."""
    code = f"""
        store = {tcp.code}
        number = 0
        while True:
            number += 1
            store.add("n", 1)
            print(number)
            store.set("large " + "x" * 600, b"%d " % number * 20000)
    """
    dice, store, told, killed = random.Random(1), tcp.client(), 0, 0
    for _ in range(3):
        with programs(code, code) as started:
            for process in started:
                lines = [process.stdout.readline() for _ in range(dice.randrange(1, 12))]
                process.kill()
                lines += process.stdout.read().splitlines(keepends=True)
                told += max(int(line) for line in lines if line.endswith("\n"))
                killed += 1
    total = int(store.get("n"))
    assert told <= total <= told + killed
    value = store.get("large " + "x" * 600)
    number = int(value.split()[0])
    assert value == b"%d " % number * 20000
    assert store.add("n", 1) == total + 1


def test_waiting_clients_are_told_when_the_server_is_killed():
    code = """
        store = TCPStore("localhost", 0, is_master=True)
        store.set("here", b"")
        print(store.port)
        sys.stdin.read()
    """
    with programs(code) as (server,):
        port = server.stdout.readline().strip()
        client_code = f"""
            store = TCPStore("localhost", {port}, lost_after=0.5)
            watch = store.watch("x")
            def ends(name, call):
                try:
                    call()
                except StoreError as error:
                    lost = "could not be made again" in str(error)
                    sys.stdout.write(f"{{name}} {{type(error).__name__}} {{lost}}\\n")
            calls = dict(
                get=lambda: store.get("never"), wait=lambda: store.wait(["never"]),
                watch=watch.next,
            )
            threads = [threading.Thread(target=ends, args=pair) for pair in calls.items()]
            for thread in threads:
                thread.start()
            print("ready", store.check(["here"]))
            for thread in threads:
                thread.join()
            ends("later", lambda: store.add("n", 1))
        """
        with programs(client_code) as (client,):
            assert client.stdout.readline() == "ready True\n"
            time.sleep(0.1)  # so that usually all three wait already
            server.kill()
            output, _ = client.communicate(timeout=120)
            assert client.returncode == 0
    said = sorted(output.splitlines())
    name = StoreConnectionError.__name__
    assert said == [f"{which} {name} True" for which in ("get", "later", "wait", "watch")]
