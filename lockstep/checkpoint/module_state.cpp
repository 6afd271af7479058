#include "lockstep/checkpoint/module_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"

namespace lockstep::inline v0 {
namespace {

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.sizes() << ' ' << tensor.dtype().name();
  return out.str();
}

// A comma-separated list that remains one readable line.
class Listing {
 public:
  void add(const std::string& item) {
    constexpr int kMost = 8;
    if (count_ < kMost) text_ += (count_ == 0 ? "" : ", ") + printable(item);
    ++count_;
    if (count_ > kMost) tail_ = " and " + std::to_string(count_ - kMost) + " more";
  }
  bool empty() const { return count_ == 0; }
  std::string str() const { return text_ + tail_; }

 private:
  std::string text_, tail_;
  int count_ = 0;
};

// Returns "" if the two have the same names, shapes and dtypes.
std::string differences(const NamedTensors& module, const std::map<std::string, at::Tensor>& file) {
  Listing missing, unexpected, other;
  std::map<std::string, at::Tensor> left = file;
  for (const auto& [name, tensor] : module) {
    const auto found = file.find(name);
    if (found == file.end()) {
      missing.add(name);
      continue;
    }
    left.erase(name);
    if (found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      other.add(name + " is " + shape_of(found->second) + " there and " + shape_of(tensor) +
                " in the model");
    }
  }
  for (const auto& [name, tensor] : left) unexpected.add(name);
  std::string text;
  const auto append = [&text](const Listing& list, const char* label) {
    if (!list.empty()) text += (text.empty() ? "" : "; ") + std::string(label) + list.str();
  };
  append(missing, "missing: ");
  append(unexpected, "unexpected: ");
  append(other, "different: ");
  return text;
}

constexpr std::string_view kModule = "module.";
// Only PyTorch's wrappers use these module names, around a model or a part of it.
constexpr std::string_view kInner[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                       "_checkpoint_wrapped_module."};

// Removes `part` from the front of every name, if every name has it.
bool strip_leading(std::vector<std::string>& names, std::string_view part) {
  const auto has_part = [part](const std::string& name) { return name.starts_with(part); };
  if (names.empty() || !std::all_of(names.begin(), names.end(), has_part)) return false;
  for (std::string& name : names) name.erase(0, part.size());
  return true;
}

// Removes `part` from a name wherever a module's name begins.
bool strip_inside(std::string& name, std::string_view part) {
  bool stripped = false;
  for (size_t at = 0; (at = name.find(part, at)) != std::string::npos;) {
    if (at != 0 && name[at - 1] != '.') {
      ++at;
      continue;
    }
    name.erase(at, part.size());
    stripped = true;
  }
  return stripped;
}

// `wrapped`: "module." may come from a wrapper.
std::string strip_names(std::vector<std::string>& names, bool wrapped) {
  std::string taken;
  // A model's own child may be called "module", too: of two in a row one is the wrapper's.
  bool module_may_come = wrapped;
  for (bool again = true; again;) {
    again = module_may_come && strip_leading(names, kModule);
    if (again) {
      taken += kModule;
      module_may_come = false;
    }
    for (const std::string_view part : kInner) {
      if (!strip_leading(names, part)) continue;
      taken += part;
      again = true;
      module_may_come = wrapped;
    }
  }
  for (const std::string_view part : kInner) {
    bool inside = false;
    for (std::string& name : names) inside = strip_inside(name, part) || inside;
    if (inside) taken += part;
  }
  return taken;
}

std::string strip(NamedTensors* state, bool wrapped) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : *state) names.push_back(name);
  const std::string taken = strip_names(names, wrapped);
  if (taken.empty() || std::set(names.begin(), names.end()).size() != names.size()) return "";
  auto name = names.begin();
  for (auto& entry : *state) entry.first = std::move(*name++);
  return taken;
}

// The tensors that set_module_state() copies, by the module's names. Throws like it.
std::map<std::string, at::Tensor> fitting(const NamedTensors& own, const NamedTensors& state,
                                          const std::string& source) {
  NamedTensors given = state;
  const std::string stripped = strip(
      &given, std::none_of(own.begin(), own.end(),
                           [](const auto& entry) { return entry.first.starts_with(kModule); }));
  std::map<std::string, at::Tensor> values(given.begin(), given.end());
  const std::string difference = differences(own, values);
  if (!difference.empty()) {
    throw CheckpointError(source + ": does not fit the model" +
                          (stripped.empty() ? ": " : " ('" + stripped + "' left out of names): ") +
                          difference + "; load it into the model that it was saved from");
  }
  return values;
}

}  // namespace

std::string strip_wrapper_prefixes(NamedTensors* state) {
  return strip(state, /*wrapped=*/true);
}

void check_module_state(const NamedTensors& own, const NamedTensors& state,
                        const std::string& source) {
  fitting(own, state, source);
}

void set_module_state(const NamedTensors& own, const NamedTensors& state,
                      const std::string& source) {
  const auto values = fitting(own, state, source);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own) tensor.copy_(values.at(name));
}

void save(const NamedTensors& state, const std::filesystem::path& path, const Metadata& metadata) {
  write_safetensors(path, state, metadata);
}

Metadata load(const NamedTensors& own, const std::filesystem::path& path) {
  Safetensors file = read_tensor_file(path).contents;
  set_module_state(own, file.tensors, path.string());
  return std::move(file.metadata);
}

}  // namespace lockstep::inline v0
