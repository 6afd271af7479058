#include "lockstep/comm/engines/mpi/mpi_meeting.h"

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/comm/engines/mpi/mpi_process.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::mpi {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);

Timeout late(const std::string& what, Deadline deadline) {
  return Timeout(what + " through MPI did not end within " +
                 std::to_string(static_cast<int>(deadline.timeout_seconds())) +
                 " s: a rank of this mpirun has not called init(), or MPI does not reach its host");
}

const Library& initialise_by(int rank, int size, Deadline deadline) {
  auto ready = std::make_shared<std::promise<const Library*>>();
  auto library = ready->get_future();
  std::thread([ready, rank, size] {
    try {
      ready->set_value(&initialise(rank, size));
    } catch (...) {
      ready->set_exception(std::current_exception());
    }
  }).detach();
  if (library.wait_for(deadline.remaining()) != std::future_status::ready)
    throw late("MPI_Init", deadline);
  return *library.get();
}

// Memory that MPI may write to until the broadcast is complete.
struct Word {
  std::array<char, kMaxWord + 1> text{};
  RequestHandle request;
  bool done = false;
};

}  // namespace

std::string word_of_rank_zero(const std::string& word, int rank, int size, Deadline deadline) {
  LOCKSTEP_CHECK(word.size() <= kMaxWord, "rank 0's word has room");
  const Library& mpi = initialise_by(rank, size, deadline);
  const auto check = [&](const char* what, int code) {
    if (code == kSuccess) return;
    give_up_finalizing();
    throw PeerLost(std::string(what) + " failed while the ranks met: " + mpi.error_text(code), -1);
  };
  auto shared = std::make_unique<Word>();
  if (rank == 0) std::copy(word.begin(), word.end(), shared->text.begin());
  {
    const std::lock_guard lock(call_mutex());
    check("MPI_Ibcast", mpi.call.ibcast(shared->text.data(), static_cast<int>(shared->text.size()),
                                        mpi.handle.uint8, 0, mpi.handle.world, &shared->request));
  }
  while (true) {
    int done = 0;
    {
      const std::lock_guard lock(call_mutex());
      Status status;
      check("MPI_Test", mpi.call.test(&shared->request, &done, &status));
    }
    if (done != 0) break;
    if (deadline.expired()) {
      give_up_finalizing();
      [[maybe_unused]] const Word* left_to_mpi = shared.release();
      throw late("the meeting", deadline);
    }
    std::this_thread::sleep_for(kLook);
  }
  return {shared->text.data()};
}

}  // namespace lockstep::inline v0::mpi
