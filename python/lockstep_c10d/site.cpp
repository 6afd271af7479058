#include "site.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace lockstep::inline v0::python {
namespace {

// Under the interpreter's lock. Never given back: errors name files long after the calls.
struct Files {
  std::vector<std::string> foreign_folders;
  std::set<std::string, std::less<>> named;
};
Files& files() {
  static auto* const all = new Files();
  return *all;
}

constexpr Site kNobodys("torch.distributed", 1);

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// "" for code that was made of a text: "<string>", "<frozen runpy>".
std::string_view program_file(PyCodeObject* code) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(code->co_filename, &size);
  if (text == nullptr) {
    PyErr_Clear();
    return {};
  }
  const std::string_view file(text, static_cast<size_t>(size));
  const auto& foreign = files().foreign_folders;
  const bool foreigners = file.starts_with('<') ||
                          std::any_of(foreign.begin(), foreign.end(),
                                      [&](const auto& folder) { return file.starts_with(folder); });
  return foreigners ? std::string_view() : file;
}

}  // namespace

void set_foreign_folders(std::vector<std::string> folders) {
  for (std::string& folder : folders) folder += '/';
  files().foreign_folders = std::move(folders);
}

Site caller_site() {
  // A thread that Python never saw has no frames.
  if (PyGILState_GetThisThreadState() == nullptr || is_finalizing()) return kNobodys;
  const pybind11::gil_scoped_acquire lock;
  Site site = kNobodys;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const std::string_view file = program_file(code);
    if (!file.empty()) {
      auto name = files().named.find(file);
      if (name == files().named.end()) name = files().named.emplace(file).first;
      site = Site(name->c_str(), static_cast<uint32_t>(std::max(PyFrame_GetLineNumber(frame), 0)));
    }
    Py_DECREF(code);
    PyFrameObject* back = file.empty() ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return site;
}

}  // namespace lockstep::inline v0::python
