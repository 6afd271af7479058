// Groups, works and the store of the C interface.
#include "lockstep/c/communicator.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "lockstep/c/internal/guard.h"
#include "lockstep/c/internal/handles.h"
#include "lockstep/c/internal/options.h"
#include "lockstep/comm/from_mpi.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/job_store.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::c_api {
namespace {

// Throws: InvalidArgument for a time-out that is none.
void check_timeout(double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return;
  throw InvalidArgument("timeout_seconds is " + std::to_string(seconds) + "; give 0 or more");
}

static_assert(LOCKSTEP_C_ENDS_WITH(lockstep_init_options, world_size));

InitOptions init_options(const lockstep_init_options* given) {
  const lockstep_init_options options =
      known_options(given, LOCKSTEP_INIT_OPTIONS, "lockstep_init_options");
  InitOptions result;
  result.backend = text_or(options.backend, "");
  result.init_method = text_or(options.init_method, "env://");
  result.secret = text_or(options.secret, "");
  result.device = text_or(options.device, "");
  check_timeout(options.timeout_seconds);
  if (options.timeout_seconds > 0)
    result.timeout = Deadline::seconds(options.timeout_seconds).timeout();
  if (options.rank != -1) result.rank = options.rank;
  if (options.world_size != -1) result.world_size = options.world_size;
  return result;
}

FromMpiOptions from_mpi_options(const lockstep_init_options* given) {
  const InitOptions options = init_options(given);
  if (options.init_method != "env://" || !options.secret.empty() || options.rank ||
      options.world_size) {
    throw InvalidArgument(
        "init_method, secret, rank and world_size are MPI's: leave them out of the options");
  }
  return {.backend = options.backend, .timeout = options.timeout, .device = options.device};
}

// Puts a number of the communicator into `out`.
template <typename F>
lockstep_status ask(const lockstep_comm* comm, int32_t* out, const F& question) noexcept {
  return guarded([&] {
    const Communicator& asked = needed(comm, "comm").comm;
    needed(out, "the pointer to the result") = question(asked);
  });
}

Deadline deadline_of(double seconds) {
  check_timeout(seconds);
  return Deadline::seconds(seconds);
}

Store& store_of(lockstep_store* store) {
  return *needed(store, "store").store;
}

}  // namespace
}  // namespace lockstep::inline v0::c_api

using lockstep::Communicator;
using lockstep::c_api::caller;
using lockstep::c_api::guarded;
using lockstep::c_api::needed;
namespace c_api = lockstep::c_api;

lockstep_status lockstep_init(const lockstep_init_options* options, lockstep_comm** comm) {
  return guarded([&] {
    lockstep_comm*& result = needed(comm, "comm");
    result = nullptr;
    result = new lockstep_comm{lockstep::init(c_api::init_options(options))};
  });
}

lockstep_status lockstep_init_from_mpi_fint(int32_t mpi_comm, const lockstep_init_options* options,
                                            const void* mpi_function, lockstep_comm** comm) {
  return guarded([&] {
    lockstep_comm*& result = needed(comm, "comm");
    result = nullptr;
    result = new lockstep_comm{
        lockstep::from_mpi_fint(mpi_comm, c_api::from_mpi_options(options), mpi_function)};
  });
}

lockstep_status lockstep_comm_free(lockstep_comm* comm) {
  return guarded([&] { delete comm; });
}

lockstep_status lockstep_comm_rank(const lockstep_comm* comm, int32_t* rank) {
  return c_api::ask(comm, rank, [](const Communicator& c) { return c.rank(); });
}

lockstep_status lockstep_comm_size(const lockstep_comm* comm, int32_t* size) {
  return c_api::ask(comm, size, [](const Communicator& c) { return c.size(); });
}

lockstep_status lockstep_comm_local_rank(const lockstep_comm* comm, int32_t* rank) {
  return c_api::ask(comm, rank, [](const Communicator& c) { return c.local_rank(); });
}

lockstep_status lockstep_comm_local_size(const lockstep_comm* comm, int32_t* size) {
  return c_api::ask(comm, size, [](const Communicator& c) { return c.local_size(); });
}

lockstep_status lockstep_comm_split(lockstep_comm* comm, int32_t color, int32_t key,
                                    lockstep_comm** group) {
  return guarded([&] {
    Communicator& whole = needed(comm, "comm").comm;
    lockstep_comm*& result = needed(group, "group");
    result = nullptr;
    std::optional<Communicator> made = whole.split(color, key, caller());
    if (made) result = new lockstep_comm{std::move(*made)};
  });
}

lockstep_status lockstep_comm_duplicate(lockstep_comm* comm, lockstep_comm** copy) {
  return guarded([&] {
    Communicator& given = needed(comm, "comm").comm;
    lockstep_comm*& result = needed(copy, "copy");
    result = nullptr;
    result = new lockstep_comm{given.duplicate(caller())};
  });
}

lockstep_status lockstep_comm_abort(lockstep_comm* comm, const char* reason) {
  return guarded(
      [&] { needed(comm, "comm").comm.abort(c_api::text_or(reason, "the program called abort")); });
}

lockstep_status lockstep_work_wait(lockstep_work* work) {
  return guarded([&] { needed(work, "work").work.wait(); });
}

lockstep_status lockstep_work_test(lockstep_work* work, int32_t* complete) {
  return guarded([&] {
    lockstep_work& tested = needed(work, "work");
    needed(complete, "complete") = tested.work.test() ? 1 : 0;
  });
}

lockstep_status lockstep_work_free(lockstep_work* work) {
  return guarded([&] { delete work; });
}

lockstep_status lockstep_store_open(double timeout_seconds, lockstep_store** store) {
  return guarded([&] {
    lockstep_store*& result = needed(store, "store");
    result = nullptr;
    result = new lockstep_store{lockstep::job_store(c_api::deadline_of(timeout_seconds))};
  });
}

lockstep_status lockstep_store_free(lockstep_store* store) {
  return guarded([&] { delete store; });
}

lockstep_status lockstep_store_set(lockstep_store* store, const char* key, const void* value,
                                   size_t size) {
  return guarded([&] {
    lockstep::Store& target = c_api::store_of(store);
    if (size > 0) needed(static_cast<const char*>(value), "value");
    target.set(&needed(key, "key"), std::string(static_cast<const char*>(value), size));
  });
}

lockstep_status lockstep_store_get(lockstep_store* store, const char* key, double timeout_seconds,
                                   void* value, size_t capacity, size_t* size) {
  return guarded([&] {
    lockstep::Store& source = c_api::store_of(store);
    size_t& needs = needed(size, "size");
    if (capacity > 0) needed(static_cast<char*>(value), "value");
    const std::string name = &needed(key, "key");
    const std::string found = source.get(name, c_api::deadline_of(timeout_seconds));
    needs = found.size();
    if (found.size() > capacity) {
      throw lockstep::InvalidArgument("the value of '" + name + "' has " +
                                      std::to_string(found.size()) +
                                      " bytes, and there is room for " + std::to_string(capacity));
    }
    if (!found.empty()) std::memcpy(value, found.data(), found.size());
  });
}

lockstep_status lockstep_store_add(lockstep_store* store, const char* key, int64_t delta,
                                   int64_t* sum) {
  return guarded([&] {
    lockstep::Store& target = c_api::store_of(store);
    int64_t& result = needed(sum, "sum");
    result = target.add(&needed(key, "key"), delta);
  });
}

lockstep_status lockstep_store_wait(lockstep_store* store, const char* key,
                                    double timeout_seconds) {
  return guarded([&] {
    lockstep::Store& source = c_api::store_of(store);
    const std::string name = &needed(key, "key");
    source.wait({&name, 1}, c_api::deadline_of(timeout_seconds));
  });
}
