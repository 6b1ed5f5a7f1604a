// The plug-in for one binary interface of MPI: MpiFunctions in terms of the mpi.h that it is
// compiled against. It is linked to no MPI: its symbols are those of the MPI that is loaded.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "ops/runtime/transport/mpi_functions.h"

namespace tfring {
namespace {

constexpr int kTag = 0;

static_assert(sizeof(MPI_Request) <= sizeof(MpiRequest), "a request has to fit");

MPI_Request RequestOf(MpiRequest request) {
  MPI_Request of_mpi;
  std::memcpy(&of_mpi, &request, sizeof(MPI_Request));
  return of_mpi;
}

MpiRequest NumberOf(MPI_Request of_mpi) {
  if (of_mpi == MPI_REQUEST_NULL) return 0;
  MpiRequest request = 0;
  std::memcpy(&request, &of_mpi, sizeof(MPI_Request));
  return request;
}

MPI_Comm CommOf(void* communicator) { return *static_cast<MPI_Comm*>(communicator); }

MpiFunctions::State State() {
  int yes = 0;
  if (MPI_Initialized(&yes) != MPI_SUCCESS || yes == 0) return MpiFunctions::kNotStarted;
  if (MPI_Finalized(&yes) != MPI_SUCCESS || yes != 0) return MpiFunctions::kEnded;
  int level = MPI_THREAD_SINGLE;
  (void)MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE ? MpiFunctions::kReady : MpiFunctions::kOneThread;
}

void* Open(int fortran_handle, int* rank, int* size) {
  const MPI_Comm comm = MPI_Comm_f2c(fortran_handle);
  if (comm == MPI_COMM_NULL) return nullptr;
  if (MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
      MPI_Comm_rank(comm, rank) != MPI_SUCCESS || MPI_Comm_size(comm, size) != MPI_SUCCESS) {
    return nullptr;
  }
  return new MPI_Comm(comm);
}

int Close(void* communicator) {
  auto* comm = static_cast<MPI_Comm*>(communicator);
  const int code = MPI_Comm_free(comm);
  delete comm;
  return code;
}

int Send(void* communicator, const void* data, int bytes, int to, MpiRequest* request) {
  MPI_Request of_mpi = MPI_REQUEST_NULL;
  const int code = MPI_Issend(data, bytes, MPI_BYTE, to, kTag, CommOf(communicator), &of_mpi);
  *request = NumberOf(of_mpi);
  return code;
}

int Receive(void* communicator, void* data, int bytes, int from, MpiRequest* request) {
  MPI_Request of_mpi = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, bytes, MPI_BYTE, from, kTag, CommOf(communicator), &of_mpi);
  *request = NumberOf(of_mpi);
  return code;
}

int Test(MpiRequest* request, bool* done, int* bytes) {
  MPI_Request of_mpi = RequestOf(*request);
  MPI_Status status;
  int complete = 0;
  const int code = MPI_Test(&of_mpi, &complete, &status);
  *done = complete != 0;
  *bytes = 0;
  if (code != MPI_SUCCESS || complete == 0) return code;
  *request = 0;
  int cancelled = 0;
  (void)MPI_Test_cancelled(&status, &cancelled);
  (void)MPI_Get_count(&status, MPI_BYTE, bytes);
  if (cancelled != 0) *bytes = -1;
  return code;
}

int Cancel(MpiRequest* request) {
  MPI_Request of_mpi = RequestOf(*request);
  return MPI_Cancel(&of_mpi);
}

void ErrorText(int code, char* text, int size) {
  char of_mpi[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, of_mpi, &length) != MPI_SUCCESS) length = 0;
  const std::string found(of_mpi, static_cast<size_t>(length));
  const std::string whole = found.empty() ? "error " + std::to_string(code) : found;
  const size_t kept = std::min(whole.size(), static_cast<size_t>(size) - 1);
  std::memcpy(text, whole.data(), kept);
  text[kept] = '\0';
}

constexpr MpiFunctions kFunctions = {
    kMpiFunctionsLayout, State, Open, Close, Send, Receive, Test, Cancel, ErrorText};

}  // namespace
}  // namespace tfring

extern "C" __attribute__((visibility("default"))) const tfring::MpiFunctions*
tfring_mpi_functions() {
  return &tfring::kFunctions;
}
