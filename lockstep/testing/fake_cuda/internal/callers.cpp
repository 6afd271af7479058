#include "lockstep/testing/fake_cuda/internal/callers.h"

#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::inline v0::testing::fake {
namespace {

constexpr size_t kFrames = 96;

// Where the program itself lies in memory, without its libraries.
struct Program {
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  uintptr_t base = 0;  // what its file's addresses begin at
  Program() {
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          auto& program = *static_cast<Program*>(to);
          program.base = info->dlpi_addr;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
            const uintptr_t first = info->dlpi_addr + part.p_vaddr;
            program.begin = std::min(program.begin, first);
            program.end = std::max(program.end, first + part.p_memsz);
          }
          return 1;  // the first is the program
        },
        this);
  }
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  }
};

const Program& program() {
  static const Program the;
  return the;
}

// The call that returns to this address, as the program's file has it.
std::string address_in_file(void* caller) {
  std::ostringstream text;
  text << "0x" << std::hex << reinterpret_cast<uintptr_t>(caller) - 1 - program().base;
  return text.str();
}

// The text without the arguments of functions, which are long and seldom needed.
std::string without_arguments(std::string_view text) {
  constexpr std::string_view kNameless = "(anonymous namespace)";
  std::string result;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && text.substr(i).starts_with(kNameless)) {
      result += kNameless;
      i += kNameless.size() - 1;
      continue;
    }
    if (text[i] == '(' && depth++ == 0) result += "()";
    if (text[i] == ')') {
      depth = std::max(depth - 1, 0);
    } else if (depth == 0) {
      result += text[i];
    }
  }
  return result;
}

// A line of addr2line's; nothing where it does not know.
std::optional<std::string> name_in(std::string_view line) {
  // Compiled without line numbers.
  if (const size_t at = line.rfind(" at "); at != line.npos && line.ends_with('?'))
    line = line.substr(0, at);
  if (const size_t at = line.find(" (discriminator"); at != line.npos) line = line.substr(0, at);
  if (line.empty() || line == "??") return std::nullopt;
  return without_arguments(line);
}

// What addr2line prints: a line for each address. Less where there is none, or it fails.
std::string ask_addr2line(const std::vector<void*>& callers) {
  std::string text;
  try {
    Pipe pipe = make_pipe();
    SubprocessOptions options;
    options.command = {"addr2line", "-Cfpse", "/proc/" + std::to_string(::getpid()) + "/exe"};
    for (void* caller : callers) options.command.push_back(address_in_file(caller));
    options.stdout_fd = pipe.write.get();
    options.stderr_fd = pipe.write.get();
    Subprocess child(options);
    pipe.write.reset();
    std::array<char, 4096> buffer;
    for (ssize_t n; (n = ::read(pipe.read.get(), buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), static_cast<size_t>(n));
    if (!child.wait(Deadline::seconds(30)).ok()) text.clear();
  } catch (const Error&) {  // no addr2line here
  }
  return text;
}

// Functions of headers that the program was compiled with, or of this room: they say nothing of it.
bool is_wrapper(const std::string& name) {
  constexpr std::array<std::string_view, 7> kPrefixes{"at::",
                                                      "c10::",
                                                      "std::",
                                                      "torch::",
                                                      "testing::",
                                                      "void testing::",
                                                      "lockstep::testing::fake::"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// The names that were found so far.
struct Names {
  Mutex mutex;
  std::map<void*, std::string> by_caller LOCKSTEP_GUARDED_BY(mutex);
};

Names& names() {
  static auto* const the = new Names;
  return *the;
}

}  // namespace

void find_callers(std::span<void*> callers) {
  std::array<void*, kFrames> frames;
  const auto count = static_cast<size_t>(::backtrace(frames.data(), static_cast<int>(kFrames)));
  // The innermost are this room's, which libtorch has called; the program is behind libtorch.
  size_t at = 0;
  while (at < count && program().holds(frames[at])) ++at;
  size_t found = 0;
  for (; at < count && found < callers.size(); ++at)
    if (program().holds(frames[at])) callers[found++] = frames[at];
  std::fill(callers.begin() + static_cast<std::ptrdiff_t>(found), callers.end(), nullptr);
}

void look_up(const std::vector<void*>& callers) {
  std::vector<void*> unknown;
  {
    const MutexLock lock(names().mutex);
    for (void* caller : callers)
      if (caller != nullptr && !names().by_caller.contains(caller)) unknown.push_back(caller);
  }
  std::sort(unknown.begin(), unknown.end());
  unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
  if (unknown.empty()) return;
  std::istringstream lines(ask_addr2line(unknown));
  const MutexLock lock(names().mutex);
  for (void* caller : unknown) {
    std::string line;
    std::getline(lines, line);
    names().by_caller.emplace(caller,
                              name_in(line).value_or(address_in_file(caller) + " of the program"));
  }
}

std::vector<std::string> name_callers(std::span<void* const> callers, size_t most) {
  look_up({callers.begin(), callers.end()});
  std::vector<std::string> result;
  const MutexLock lock(names().mutex);
  for (void* caller : callers) {
    if (caller == nullptr || result.size() == most) break;
    const std::string& name = names().by_caller[caller];
    if (!is_wrapper(name)) result.push_back(name);
  }
  return result;
}

}  // namespace lockstep::inline v0::testing::fake
