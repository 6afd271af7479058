#include "lockstep/hooks/internal/dispatch_key.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::inline v0::hooks::internal {
namespace {

thread_local int keys = 0;

struct Registered {
  torch::Library every{torch::Library::IMPL, "_", kKey, __FILE__, __LINE__};
  torch::Library aten{torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__};
};

}  // namespace

KeyOnThread::KeyOnThread() {
  if (keys++ == 0) c10::impl::tls_set_dispatch_key_included(kKey, true);
}
KeyOnThread::~KeyOnThread() {
  if (--keys == 0) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

bool KeyOnThread::is_here() {
  return keys > 0;
}

torch::Library& kernels() {
  // A reference to an object that is never freed.
  static Registered& registered = *[] {
    auto* const made = new Registered;
    made->every.fallback(torch::CppFunction::makeFallthrough());
    return made;
  }();
  return registered.aten;
}

}  // namespace lockstep::inline v0::hooks::internal
