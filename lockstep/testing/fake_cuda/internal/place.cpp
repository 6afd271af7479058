#include "lockstep/testing/fake_cuda/internal/place.h"

#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/subprocess.h"

namespace lockstep::testing::fake {
namespace {

constexpr int kFrames = 96;
constexpr size_t kCallers = 3;  // that a report names

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
            program.begin = std::min<uintptr_t>(program.begin, info->dlpi_addr + part.p_vaddr);
            program.end =
                std::max<uintptr_t>(program.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
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

// The text without the arguments of functions, which are long and seldom needed.
std::string without_arguments(const std::string& text) {
  constexpr std::string_view kNameless = "(anonymous namespace)";
  std::string result;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && std::string_view(text).substr(i).starts_with(kNameless)) {
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

// What addr2line says of an address of the program: "function at file:line".
std::optional<std::string> ask_addr2line(uintptr_t address) {
  std::ostringstream hex;
  hex << "0x" << std::hex << address;
  std::string text;
  try {
    Pipe pipe = make_pipe();
    SubprocessOptions options;
    options.command = {"addr2line", "-Cfpse", "/proc/" + std::to_string(::getpid()) + "/exe",
                       hex.str()};
    options.stdout_fd = pipe.write.get();
    options.stderr_fd = pipe.write.get();
    Subprocess child(options);
    pipe.write.reset();
    char buffer[512];
    for (ssize_t n; (n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    if (!child.wait(Deadline::seconds(30)).ok()) return std::nullopt;
  } catch (const Error&) {  // no addr2line here
    return std::nullopt;
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  // Compiled without lines.
  if (const size_t at = text.rfind(" at "); at != std::string::npos && text.ends_with("?"))
    text.resize(at);
  if (const size_t at = text.find(" (discriminator"); at != std::string::npos) text.resize(at);
  if (text.empty() || text == "??") return std::nullopt;
  return without_arguments(text);
}

// Functions of headers that the program was compiled with: they say nothing of it.
bool is_wrapper(const std::string& name) {
  for (const char* library : {"at::", "c10::", "std::", "torch::"})
    if (name.starts_with(library)) return true;
  return false;
}

// The call that returns to this address.
std::string caller_text(void* address) {
  static Mutex mutex;
  static std::map<void*, std::string> known;
  {
    const MutexLock lock(mutex);
    if (const auto it = known.find(address); it != known.end()) return it->second;
  }
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - 1 - program().base;
  std::ostringstream plain;
  plain << "0x" << std::hex << offset << " of the program";
  std::string text = ask_addr2line(offset).value_or(plain.str());
  const MutexLock lock(mutex);
  return known.emplace(address, std::move(text)).first->second;
}

}  // namespace

PlacePtr make_place(std::string operation, std::string where, std::string node, bool callers) {
  auto place = std::make_shared<Place>();
  place->operation = std::move(operation);
  place->where = std::move(where);
  place->node = std::move(node);
  if (!callers) return place;
  void* frames[kFrames];
  const int count = ::backtrace(frames, kFrames);
  // The innermost are this room's, which libtorch has called; the program is behind libtorch.
  int at = 0;
  while (at < count && program().holds(frames[at])) ++at;
  size_t found = 0;
  for (; at < count && found < place->callers.size(); ++at)
    if (program().holds(frames[at])) place->callers[found++] = frames[at];
  return place;
}

std::string describe(const Place& place) {
  std::string text = place.operation + " on " + place.where;
  if (!place.node.empty()) text += ", in " + place.node;
  std::vector<std::string> callers;
  for (void* caller : place.callers) {
    if (caller == nullptr || callers.size() == kCallers) break;
    std::string name = caller_text(caller);
    if (!is_wrapper(name)) callers.push_back(std::move(name));
  }
  for (size_t i = 0; i < callers.size(); ++i)
    text += (i == 0 ? ", called from " : " < ") + callers[i];
  return text;
}

}  // namespace lockstep::testing::fake
