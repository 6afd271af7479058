// Reads the data subset of Python's pickle format into values: no code is looked up or run. Pure;
// the bytes may be hostile.
//
// Format: pickle protocol 2 (PEP 307, CPython's Lib/pickletools.py), as torch.save writes it. Where
// a pickle names a Python object, only names that the caller allows are accepted, and a call of one
// becomes a value that represents the call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

enum class PickleKind : uint8_t {
  kNone,
  kBool,        // integer: 0 or 1
  kInteger,     // integer
  kBigInteger,  // beyond 64 bits; its value is not kept
  kFloat,       // number
  kText,        // text
  kTuple,       // items
  kList,        // items
  kDict,        // items: key, value, key, value, ...
  kGlobal,      // text: "module name", one space between
  kCall,        // text: the global's; items: one, the tuple of arguments
  kPersistent,  // items: one, the persistent id
};

// A value; it refers to others by their index in Pickle::values, in which cycles are possible.
struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string_view text;  // lies in the pickle's bytes, or among the caller's names
  std::vector<uint32_t> items;
};

struct Pickle {
  std::vector<PickleValue> values;
  uint32_t root = 0;

  const PickleValue& operator[](uint32_t value) const { return values[value]; }
  // The value of a dict's text key, or nullptr; the last one where it was set again.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;
};

// An allowed name, and whether it may be called.
struct PickleGlobal {
  std::string_view name;  // "module name"
  enum class Use { kNameOnly, kCall, kMakesDict } use = Use::kNameOnly;
};

// Takes memory in proportion to the bytes, at most some hundred megabytes.
// Throws: a one-line CheckpointError that begins with `file` for damaged bytes, and for an object
// that is not data, with its name.
Pickle read_pickle(std::string_view bytes, std::span<const PickleGlobal> allowed,
                   const std::string& file);

}  // namespace lockstep::inline v0
