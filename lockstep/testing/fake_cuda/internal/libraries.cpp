// Puts the libraries where dlopen("libnccl.so.2") and dlopen("libcudart.so.13") find them: in
// memory, loaded already, under these names.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"
#include "lockstep/testing/fake_cuda/internal/nccl.h"
#include "lockstep/testing/fake_cuda/internal/runtime.h"
#include "lockstep/testing/fake_cuda/shims/embedded.h"

namespace lockstep::inline v0::testing::fake {
namespace {

// The file is to stay open until all are loaded: dlopen takes one path for one library.
UniqueFd load(const char* name, std::string_view bytes, const char* table_name, const void* table) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  size_t written = 0;
  while (file.get() >= 0 && written < bytes.size()) {
    const ssize_t n = ::write(file.get(), bytes.data() + written, bytes.size() - written);
    if (n < 0) break;
    written += static_cast<size_t>(n);
  }
  if (written < bytes.size())
    throw system_error(std::string("FakeCuda: no memory for its ") + name, errno);
  void* library =
      ::dlopen(("/proc/self/fd/" + std::to_string(file.get())).c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : ::dlsym(library, table_name);
  if (symbol == nullptr)
    throw LaunchError(std::string("FakeCuda: its ") + name + " cannot be loaded: " + ::dlerror());
  *static_cast<const void**>(symbol) = table;
  return file;
}

}  // namespace

void load_libraries() {
  const UniqueFd cudart =
      load("libcudart.so.13", cudart_file(), "lockstep_fake_cudart", &runtime_table());
  const UniqueFd nccl = load("libnccl.so.2", nccl_file(), "lockstep_fake_nccl", &nccl_table());
}

}  // namespace lockstep::inline v0::testing::fake
