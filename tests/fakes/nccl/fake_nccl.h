#ifndef TFRING_TESTS_FAKES_NCCL_FAKE_NCCL_H_
#define TFRING_TESTS_FAKES_NCCL_FAKE_NCCL_H_

// The fake's own functions, beside NCCL's; exported by the fake libnccl.so.2. A test finds them
// with dlsym. Before the first use of the library the environment variable TFRING_FAKE_NCCL is
// read, for programs that cannot call: TFRING_FAKE_NCCL="init_delay_ms=200,remote_error=1".
//
// Settings, of this process (in brackets: the default):
//   version [22707]          what ncclGetVersion says. From 23000 on, several ranks of
//                            a communicator may have one device where
//                            NCCL_MULTI_RANK_GPU_ENABLE is 1
//   in_progress_polls [1]    non-blocking communicators: how many polls say ncclInProgress after
//                            init, group end and finalize. What was asked for is done at the last
//                            poll, so that a caller who does not poll gets nothing
//   hang_init, hang_group, hang_abort [0]
//                            1: the call does not end until the setting is 0 again or, but for the
//                            last one, until abort. While an abort hangs, kernels spin on
//   kernel_slots [0]         how many kernels a device runs at a time; 0 is any number
//   remote_error [0]         1: a peer's death or abort shows as ncclRemoteError, as over sockets
//   only_rank [-1]           the faults below hit only this rank of a communicator
//   fail_init [0]            n: the n-th init from now on of several ranks gives error_code before
//                            it has met the others, who wait for it
//   fail_late [0]            n: the same, after it has met them: theirs is a success
//   fail_call [0]            n: the n-th collective call from now on returns error_code
//   error_at_kernel [0]      n: the n-th kernel from now on ends in the asynchronous error
//                            error_code, and spins until abort as real ones do
//   hang_kernel [0]          n: the n-th kernel from now on spins until abort, without any error
//   error_code [2]           ncclSystemError
//   fail_alone [-1]          d: a communicator of one rank on device d fails with error_code
//   kill_rank [-1]           r: all communicators of which this process is rank r behave from now
//                            on as if their process had died: they answer no peer, and kernels spin
extern "C" {

void FakeNcclSet(const char* what, long value);

// All settings and counters as at the beginning. Communicators stay.
void FakeNcclReset();

// Since the beginning or the last reset: "kernels" started, "mismatches" (ranks that did not call
// the same; each is also written to stderr), "bad_handles" (communicators used after their end),
// "early_calls" (while ncclInProgress), "aborts"; "inits" and "destroys" of communicators of
// several ranks, "alone": inits of those of one; and now: "communicators".
long FakeNcclCount(const char* what);

}  // extern "C"

#endif  // TFRING_TESTS_FAKES_NCCL_FAKE_NCCL_H_
