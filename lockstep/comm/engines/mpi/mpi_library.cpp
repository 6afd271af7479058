#include "lockstep/comm/engines/mpi/mpi_library.h"

#include <dlfcn.h>

#include <array>
#include <sstream>
#include <type_traits>

#include "lockstep/core/errors.h"
#include "lockstep/launch/mpi_family.h"

namespace lockstep::inline v0::mpi {
namespace {

using launch::MpiFamily;

constexpr const char* kKnown =
    "Lockstep knows Open MPI 4 and 5, MPICH with what shares its libmpi.so.12 (Intel MPI, Cray "
    "MPICH, MVAPICH), and every libmpi_abi.so.1";

constexpr const char* kStandardFile = "libmpi_abi.so.1";

void* find_symbol(void* library, const std::string& file, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) throw LaunchError(file + " has no " + name + ": " + kKnown);
  return symbol;
}

// Where this program has the library's object `name`: an executable that names it
// may hold the copy that all use, the library too (a copy relocation), so the global scope is asked
// before the library.
void* find_object(void* library, const std::string& file, const char* name) {
  void* object = ::dlsym(RTLD_DEFAULT, name);
  return object != nullptr ? object : find_symbol(library, file, name);
}

struct Opened {
  void* library = nullptr;
  std::string file;
};

Opened open_library(const LibraryChoice& choice) {
  void* loaded = choice.asked_for ? nullptr : ::dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
  Dl_info info{};
  if (loaded != nullptr && ::dladdr(loaded, &info) != 0) return {RTLD_DEFAULT, info.dli_fname};
  std::string reasons;
  for (const std::string& file : choice.files) {
    // RTLD_GLOBAL, because Open MPI's plug-ins look for its symbols in the global scope.
    if (void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL)) return {library, file};
    const char* reason = ::dlerror();
    reasons += (reasons.empty() ? "" : "; ") +
               std::string(reason != nullptr ? reason : file + " cannot be loaded");
  }
  throw LaunchError(choice.reason + " (" + reasons + "); " + choice.advice);
}

std::string install(const std::string& packages) {
  return "install it (Debian, Ubuntu: " + packages + ") or add its folder to LD_LIBRARY_PATH";
}

}  // namespace

LibraryChoice choose_library(const EnvLookup& env) {
  using launch::mpi_package;
  if (const auto file = env("LOCKSTEP_MPI_LIBRARY")) {
    return {{*file},
            "LOCKSTEP_MPI_LIBRARY=" + *file + " cannot be loaded",
            "give the file of Open MPI's or MPICH's library, or unset it",
            true};
  }
  LibraryChoice choice;
  const std::vector<MpiFamily> families = launch::fitting_families(env);
  for (const MpiFamily family : families) {
    for (const std::string& file : launch::mpi_library_files(family)) choice.files.push_back(file);
  }
  choice.files.emplace_back(kStandardFile);
  if (families.size() == 1) {
    const std::string name = to_string(families[0]);
    choice.reason =
        name + "'s mpirun started this process, but " + name + "'s library cannot be loaded";
    choice.advice = install(std::string("apt install ") + mpi_package(families[0]));
  } else {
    choice.reason = "backend mpi needs Open MPI or MPICH, but neither can be loaded";
    choice.advice = install(std::string("apt install ") + mpi_package(families[0]) +
                            ", or apt install " + mpi_package(families[1]));
  }
  return choice;
}

std::string short_version(const std::string& text) {
  std::istringstream line(text.substr(0, text.find_first_of(",\n")));
  std::string result;
  for (std::string word; line >> word;) {
    if (word == "Version:" || word == "Version" || word == ":" || word == "VERSION") continue;
    if (word == "MPI" && result.empty()) continue;  // Cray's line starts with "MPI VERSION :"
    result += (result.empty() ? "" : " ") + word;
  }
  return result;
}

// Finds the library's interface; sets abi_ and name_.
void Library::identify(void* library) {
  // These functions take no handles, so either form of them works.
  void* version_of = find_symbol(library, file_, "MPI_Get_library_version");
  identity_ = version_of;
  call.get_library_version = {version_of, Abi::kStandard};
  std::array<char, kMostText + 1> text{};
  int length = 0;
  call.get_library_version(text.data(), &length);
  const std::string version = short_version(text.data());
  name_ = version + " (" + file_ + ")";
  // Of MPI 5.0; it gives -1 where the library is of another interface.
  if (void* symbol = ::dlsym(library, "MPI_Abi_get_version")) {
    int major = -1;
    int minor = -1;
    const Function<int(int*, int*)> get_version(symbol, Abi::kStandard);
    if (get_version(&major, &minor) == kSuccess && major == 1) {
      abi_ = Abi::kStandard;
      return;
    }
  }
  const auto family = launch::family_of_version(text.data());
  const bool known_open_mpi =
      version.starts_with("Open MPI v4.") || version.starts_with("Open MPI v5.");
  if (!family || (family == MpiFamily::kOpenMpi && !known_open_mpi)) {
    throw LaunchError(file_ + " is " + (version.empty() ? "an unknown MPI" : version) + ": " +
                      kKnown + "; LOCKSTEP_MPI_LIBRARY names another file");
  }
  abi_ = family == MpiFamily::kMpich ? Abi::kMpich : Abi::kOpenMpi;
}

Library::Library(const LibraryChoice& choice) {
  const Opened opened = open_library(choice);
  file_ = opened.file;
  load(opened.library);
}

Library::Library(void* library, std::string file) : file_(std::move(file)) {
  load(library);
}

Library Library::of_program(const void* function) {
  Dl_info info{};
  if (function != nullptr && ::dladdr(function, &info) != 0) {
    // The address may also be the executable's own entry for the function.
    void* library = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr && ::dlsym(library, "MPI_Get_library_version") != nullptr)
      return {library, info.dli_fname};
  }
  void* loaded = ::dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
  if (loaded == nullptr || ::dladdr(loaded, &info) == 0) {
    throw LaunchError(
        "this program shows no MPI: link it with MPI's shared library, or load that with "
        "RTLD_GLOBAL, before it hands over a communicator");
  }
  return {RTLD_DEFAULT, info.dli_fname};
}

void Library::load(void* library) {
  identify(library);
  const auto find = [&](const char* name) { return find_symbol(library, file_, name); };
  constants_ = constants_of(abi_);
  for (const HandleRow& row : kHandles) {
    switch (abi_) {
      case Abi::kOpenMpi:
        (handle.*row.where).pointer = find_object(library, file_, row.open_mpi);
        break;
      case Abi::kMpich:
        (handle.*row.where).number = row.mpich;
        break;
      case Abi::kStandard:
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the standard's own value
        (handle.*row.where).pointer = reinterpret_cast<void*>(static_cast<intptr_t>(row.standard));
        break;
    }
  }
  const auto load = [&](auto& target, const char* name) {
    target = std::remove_reference_t<decltype(target)>(find(name), abi_);
  };
  load(call.initialized, "MPI_Initialized");
  load(call.finalized, "MPI_Finalized");
  load(call.init_thread, "MPI_Init_thread");
  load(call.query_thread, "MPI_Query_thread");
  load(call.is_thread_main, "MPI_Is_thread_main");
  load(call.finalize, "MPI_Finalize");
  load(call.error_string, "MPI_Error_string");
  load(call.error_class, "MPI_Error_class");
  load(call.comm_rank, "MPI_Comm_rank");
  load(call.comm_size, "MPI_Comm_size");
  load(call.comm_test_inter, "MPI_Comm_test_inter");
  // With MPICH's family the number is the handle, and MPI_Comm_f2c a macro.
  if (abi_ != Abi::kMpich)
    load(comm_of_number_, abi_ == Abi::kStandard ? "MPI_Comm_fromint" : "MPI_Comm_f2c");
  load(call.comm_idup, "MPI_Comm_idup");
  load(call.comm_free, "MPI_Comm_free");
  load(call.comm_set_errhandler, "MPI_Comm_set_errhandler");
  load(call.comm_group, "MPI_Comm_group");
  load(call.group_incl, "MPI_Group_incl");
  load(call.group_free, "MPI_Group_free");
  load(call.comm_create_group, "MPI_Comm_create_group");
  load(call.test, "MPI_Test");
  load(call.get_elements_x, "MPI_Get_elements_x");
  load(call.isend, "MPI_Isend");
  load(call.irecv, "MPI_Irecv");
  load(call.ibarrier, "MPI_Ibarrier");
  load(call.ibcast, "MPI_Ibcast");
  load(call.ireduce, "MPI_Ireduce");
  load(call.iallreduce, "MPI_Iallreduce");
  load(call.igather, "MPI_Igather");
  load(call.igatherv, "MPI_Igatherv");
  load(call.iallgather, "MPI_Iallgather");
  load(call.iallgatherv, "MPI_Iallgatherv");
  load(call.iscatter, "MPI_Iscatter");
  load(call.iscatterv, "MPI_Iscatterv");
  load(call.ireduce_scatter, "MPI_Ireduce_scatter");
  load(call.ireduce_scatter_block, "MPI_Ireduce_scatter_block");
  load(call.ialltoallv, "MPI_Ialltoallv");
  load(call.barrier, "MPI_Barrier");
  load(call.send, "MPI_Send");
  load(call.recv, "MPI_Recv");
  load(call.bcast, "MPI_Bcast");
  load(call.reduce, "MPI_Reduce");
  load(call.allreduce, "MPI_Allreduce");
  load(call.gather, "MPI_Gather");
  load(call.allgather, "MPI_Allgather");
  load(call.scatter, "MPI_Scatter");
  load(call.reduce_scatter_block, "MPI_Reduce_scatter_block");
  load(call.alltoall, "MPI_Alltoall");
}

int64_t Library::received_bytes(const Status& status) const {
  int64_t bytes = 0;
  call.get_elements_x(&status, handle.byte, &bytes);
  return bytes;
}

std::string Library::error_text(int code) const {
  std::array<char, kMostText + 1> text{};
  int length = 0;
  call.error_string(code, text.data(), &length);
  return {text.data(), static_cast<size_t>(length)};
}

bool Library::is_truncation(int code) const {
  int kind = 0;
  call.error_class(code, &kind);
  return kind == constants_.error_truncate;
}

bool Library::is_null(Comm comm) const {
  return abi_ == Abi::kMpich ? comm.number == handle.comm_null.number
                             : comm.pointer == nullptr || comm.pointer == handle.comm_null.pointer;
}

Comm Library::comm_of(int number) const {
  return abi_ == Abi::kMpich ? Comm{.number = number} : comm_of_number_(number);
}

}  // namespace lockstep::inline v0::mpi
