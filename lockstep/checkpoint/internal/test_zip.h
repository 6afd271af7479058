// For tests: archives of stored members and their pickles, with errors on request.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::inline v0 {

// Little-endian, as in zip and pickle.
template <class Number>
std::string le(Number value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A zip archive of stored members.
inline std::string stored_zip(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string archive, central;
  for (const auto& [name, bytes] : members) {
    const auto crc = static_cast<uint32_t>(
        ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
    const auto size = static_cast<uint32_t>(bytes.size());
    const std::string middle = le<uint16_t>(20) + le<uint16_t>(0) + le<uint16_t>(0) +
                               le<uint32_t>(0) + le(crc) + le(size) + le(size) +
                               le(static_cast<uint16_t>(name.size())) + le<uint16_t>(0);
    central += "PK\1\2" + le<uint16_t>(20) + middle + le<uint16_t>(0) + le<uint16_t>(0) +
               le<uint16_t>(0) + le<uint32_t>(0) + le(static_cast<uint32_t>(archive.size())) + name;
    archive += "PK\3\4" + middle + name + bytes;
  }
  const auto count = static_cast<uint16_t>(members.size());
  const std::string end = "PK\5\6" + le<uint32_t>(0) + le(count) + le(count) +
                          le(static_cast<uint32_t>(central.size())) +
                          le(static_cast<uint32_t>(archive.size())) + le<uint16_t>(0);
  return archive + central + end;
}

// Pieces of a pickle.
inline std::string pickled(const std::string& text) {
  return "X" + le(static_cast<uint32_t>(text.size())) + text;
}
inline std::string pickled(int32_t number) {
  return "J" + le(number);
}
inline std::string pickled(const std::vector<int64_t>& tuple) {
  std::string out = "(";
  for (const int64_t number : tuple) out += "\x8a\x08" + le(number);
  return out + "t";
}

struct PickledTensor {
  std::string storage_class = "torch\nFloatStorage\n";
  std::string key = "0";
  int32_t storage_size = 6;
  int32_t offset = 0;
  std::vector<int64_t> sizes{2, 3};
  std::vector<int64_t> strides{3, 1};
};
inline std::string pickled(const PickledTensor& tensor) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "c" + tensor.storage_class +
         pickled(tensor.key) + pickled("cpu") + pickled(tensor.storage_size) + "tQ" +
         pickled(tensor.offset) + pickled(tensor.sizes) + pickled(tensor.strides) + "\x89" +
         "ccollections\nOrderedDict\n)RtR";
}

// The pickle of a dict with one entry.
inline std::string pickled_dict(const std::string& value, const std::string& key = "w") {
  return "\x80\x02}" + pickled(key) + value + "s.";
}

// A file of torch.save with that pickle, and 24 bytes as storage "0".
inline std::string pt_archive(const std::string& pickle) {
  return stored_zip({{"archive/data.pkl", pickle},
                     {"archive/byteorder", "little"},
                     {"archive/data/0", std::string(24, '\0')},
                     {"archive/version", "3\n"}});
}

}  // namespace lockstep::inline v0
