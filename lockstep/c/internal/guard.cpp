#include "lockstep/c/internal/guard.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <type_traits>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0::c_api {
namespace {

// Of the calling thread. C has no place for an error's text but this one. It needs no memory and has
// no destructor: a program may call Lockstep while a thread's objects are destroyed.
struct LastCall {
  char error[4096] = "";  // cut short where it is longer
  const char* file = "";
  uint32_t line = 0;
};
static_assert(std::is_trivially_destructible_v<LastCall>);
constinit thread_local LastCall last_call;

lockstep_status keep(lockstep_status status, const char* text) noexcept {
  if (*text == '\0') text = "an exception without a message";
  const size_t size = whole_characters(text, sizeof last_call.error - 1);
  std::memcpy(last_call.error, text, size);
  last_call.error[size] = '\0';
  return status;
}

}  // namespace

void begin_call() noexcept {
  last_call.error[0] = '\0';
}

void end_call() noexcept {
  last_call.file = "";
  last_call.line = 0;
}

Site caller() noexcept {
  return {last_call.file, last_call.line};
}

void throw_null(const char* name) {
  throw InvalidArgument(std::string(name) + " is NULL");
}

lockstep_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return keep(LOCKSTEP_INVALID_ARGUMENT, error.what());
  } catch (const Timeout& error) {
    return keep(LOCKSTEP_TIMEOUT, error.what());
  } catch (const PeerLost& error) {
    return keep(LOCKSTEP_PEER_LOST, error.what());
  } catch (const Mismatch& error) {
    return keep(LOCKSTEP_MISMATCH, error.what());
  } catch (const StoreError& error) {
    return keep(LOCKSTEP_STORE_ERROR, error.what());
  } catch (const DataError& error) {
    return keep(LOCKSTEP_DATA_ERROR, error.what());
  } catch (const CheckpointError& error) {
    return keep(LOCKSTEP_CHECKPOINT_ERROR, error.what());
  } catch (const LaunchError& error) {
    return keep(LOCKSTEP_LAUNCH_ERROR, error.what());
  } catch (const SystemError& error) {
    return keep(LOCKSTEP_SYSTEM_ERROR, error.what());
  } catch (const CallbackError& error) {
    return keep(LOCKSTEP_CALLBACK_ERROR, error.what());
  } catch (const c10::Error& error) {
    return keep(LOCKSTEP_TORCH_ERROR, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return keep(LOCKSTEP_OUT_OF_MEMORY, "no memory is left");
  } catch (const Error& error) {
    // Such as gradients that are not finite: the reason is in the data.
    return keep(LOCKSTEP_DATA_ERROR, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return keep(LOCKSTEP_DATA_ERROR, error.what());
  } catch (const std::logic_error& error) {
    return keep(LOCKSTEP_INTERNAL_ERROR, error.what());
  } catch (const std::exception& error) {
    // TorchScript's interpreter throws such for an operation that was refused inside it.
    return keep(LOCKSTEP_TORCH_ERROR, error.what());
  } catch (...) {
    return keep(LOCKSTEP_INTERNAL_ERROR, "an unknown exception");
  }
}

}  // namespace lockstep::inline v0::c_api

using lockstep::c_api::last_call;

const char* lockstep_last_error(void) {
  return last_call.error;
}

void lockstep_site(const char* file, uint32_t line) {
  last_call.file = file != nullptr ? file : "";
  last_call.line = line;
}

#define LOCKSTEP_C_NAMED(status) \
  case status:                   \
    return #status

const char* lockstep_status_name(lockstep_status status) {
  switch (status) {
    LOCKSTEP_C_NAMED(LOCKSTEP_OK);
    LOCKSTEP_C_NAMED(LOCKSTEP_INVALID_ARGUMENT);
    LOCKSTEP_C_NAMED(LOCKSTEP_TIMEOUT);
    LOCKSTEP_C_NAMED(LOCKSTEP_PEER_LOST);
    LOCKSTEP_C_NAMED(LOCKSTEP_MISMATCH);
    LOCKSTEP_C_NAMED(LOCKSTEP_STORE_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_DATA_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_CHECKPOINT_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_LAUNCH_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_SYSTEM_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_OUT_OF_MEMORY);
    LOCKSTEP_C_NAMED(LOCKSTEP_TORCH_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_CALLBACK_ERROR);
    LOCKSTEP_C_NAMED(LOCKSTEP_INTERNAL_ERROR);
  }
  return "unknown status";
}

#undef LOCKSTEP_C_NAMED

const char* lockstep_version(void) {
  return LOCKSTEP_VERSION;
}

int32_t lockstep_abi_version(void) {
  return LOCKSTEP_C_ABI;
}
