#include "lockstep/comm/engines/mpi/mpi_world.h"

#include <sched.h>

#include <mutex>

#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::mpi {
namespace {

void check_initialised(const Library& library) {
  int initialised = 0;
  int finalised = 0;
  library.call.initialized(&initialised);
  library.call.finalized(&finalised);
  if (initialised == 0)
    throw InvalidArgument(
        "from_mpi: MPI is not initialised; call MPI_Init or MPI_Init_thread first");
  if (finalised != 0) throw InvalidArgument("from_mpi: MPI_Finalize was called already");
}

bool takes_serialized_threads(const Library& library) {
  int level = 0;
  library.call.query_thread(&level);
  return level >= library.thread_serialized();
}

// Below MPI_THREAD_SERIALIZED the thread that initialised MPI is the only one that may call it.
bool is_main_thread(const Library& library) {
  int main = 0;
  library.call.is_thread_main(&main);
  return main != 0;
}

}  // namespace

World::World(const Library& library, Comm comm, int rank, int size, bool duplicate)
    : library_(library),
      comm_(comm),
      rank_(rank),
      size_(size),
      duplicate_(duplicate),
      // Where Lockstep has initialised MPI, it has asked for that level, and no thread but its own
      // calls MPI.
      any_thread_(!duplicate || takes_serialized_threads(library)) {}

World::~World() {
  if (!duplicate_ || unfinished_ || !usable(library_) || refuses_caller() != nullptr) return;
  const std::lock_guard lock(call_mutex());
  if (answering()) library_.call.comm_free(&comm_);
}

const char* World::refuses_caller() const noexcept {
  if (!answering()) return nullptr;  // the call says so
  if (!usable(library_)) return "MPI_Finalize was called already";
  if (any_thread_ || is_main_thread(library_)) return nullptr;
  return "this thread may not call MPI: call it on the thread that called MPI_Init, or initialise "
         "MPI with MPI_THREAD_SERIALIZED";
}

Comm duplicate(const Library& library, Comm comm, Deadline deadline) {
  // MPI writes to it until the request is complete.
  struct Pending {
    Comm comm;
    RequestHandle request;
  };
  auto pending = std::make_unique<Pending>();
  pending->request = library.handle.request_null;
  {
    const std::lock_guard lock(call_mutex());
    check_answering();
    check_success(library, library.call.comm_idup(comm, &pending->comm, &pending->request),
                  "MPI_Comm_idup");
  }
  while (true) {
    int done = 0;
    {
      const std::lock_guard lock(call_mutex());
      check_answering();
      Status status;
      check_success(library, library.call.test(&pending->request, &done, &status), "MPI_Comm_idup");
      if (done != 0) {
        library.call.comm_set_errhandler(pending->comm, library.handle.errors_return);
        return pending->comm;
      }
    }
    if (deadline.expired()) {
      give_up_finalizing();
      [[maybe_unused]] const Pending* left_to_mpi = pending.release();
      throw Timeout("connecting the ranks through MPI took longer than " +
                    std::to_string(deadline.timeout_seconds()) +
                    " s; do all ranks of the communicator call this?");
    }
    ::sched_yield();
  }
}

std::shared_ptr<const World> world_of(int number, const void* function, Deadline deadline) {
  const Library& library = library_of_program(function);
  check_initialised(library);
  if (!takes_serialized_threads(library) && !is_main_thread(library)) {
    throw InvalidArgument(
        "from_mpi: this thread may not call MPI: call from_mpi on the thread that called MPI_Init, "
        "or initialise MPI with MPI_THREAD_SERIALIZED");
  }
  const Comm comm = library.comm_of(number);
  if (library.is_null(comm)) {
    throw InvalidArgument(
        "from_mpi: the communicator is MPI_COMM_NULL: this process is in none, and does not call "
        "from_mpi");
  }
  int between_groups = 0;
  int rank = 0;
  int size = 0;
  check_success(library, library.call.comm_test_inter(comm, &between_groups),
                "MPI_Comm_test_inter");
  if (between_groups != 0) {
    throw InvalidArgument(
        "from_mpi: this is an intercommunicator; MPI_Intercomm_merge makes one group of its two");
  }
  check_success(library, library.call.comm_rank(comm, &rank), "MPI_Comm_rank");
  check_success(library, library.call.comm_size(comm, &size), "MPI_Comm_size");
  return std::make_shared<const World>(library, duplicate(library, comm, deadline), rank, size,
                                       true);
}

}  // namespace lockstep::inline v0::mpi
