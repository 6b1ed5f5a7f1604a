"""Several processes with one store; some are killed in the middle of an operation."""

from __future__ import annotations

import time

from store_tools import programs

from tfring.job.store import StoreConnectionError


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
