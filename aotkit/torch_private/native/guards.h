// What guards compare on every call, in C++: tensors, and the state of modules.
//
// A header, because torch's take the compiler longer than all of ours: one file includes them.

#pragma once

#include <torch/csrc/python_headers.h>

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "memory.h"
#include "places.h"

namespace {

// The attributes of an object that has a `__dict__`; nullptr if it has none, or has not made it yet.
PyObject* attributes_of(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  return place ? *place : nullptr;
}

// What a graph assumes of one tensor.
struct Expected {
  PyTypeObject* type;
  c10::DispatchKeySet keys;
  at::ScalarType dtype;
  c10::Device device;
  bool requires_grad;
  bool is_open;  // sizes and strides may be others
  std::vector<int64_t> sizes, strides;

  bool holds(PyObject* object, const c10::impl::LocalDispatchKeySet& local) const {
    if (Py_TYPE(object) != type) return false;
    const at::TensorImpl* tensor = THPVariable_Unpack(object).unsafeGetTensorImpl();
    if (keys != ((tensor->key_set() | local.included_) - local.excluded_)) return false;
    if (tensor->dtype() != at::scalarTypeToTypeMeta(dtype) || tensor->device() != device) return false;
    if (tensor->requires_grad() != requires_grad) return false;
    if (tensor->dim() != static_cast<int64_t>(sizes.size())) return false;
    return is_open || (tensor->sizes() == sizes && tensor->strides() == strides);
  }
};

// A set of addresses on the stack, large enough for most calls.
class Addresses {
 public:
  explicit Addresses(size_t count) {
    while (capacity_ < 2 * count) capacity_ *= 2;
    if (capacity_ > kMost) more_.resize(capacity_);
    table_ = capacity_ > kMost ? more_.data() : few_;
    std::fill(table_, table_ + capacity_, nullptr);
  }
  // Whether it was not there before.
  bool insert(const void* address) {
    auto i = (reinterpret_cast<uintptr_t>(address) >> 4) * 0x9E3779B97F4A7C15ull >> 20;
    for (i &= capacity_ - 1; table_[i]; i = (i + 1) & (capacity_ - 1)) {
      if (table_[i] == address) return false;
    }
    table_[i] = address;
    return true;
  }

 private:
  static constexpr size_t kMost = 512;
  size_t capacity_ = 8;
  const void* few_[kMost];
  std::vector<const void*> more_;
  const void** table_;
};

struct TensorGuard {
  PyObject_HEAD
  vectorcallfunc call;
  std::vector<Expected>* expected;
};

// Whether the arguments are to a graph what the tensors of the guard are, all of them different.
PyObject* check_tensors(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto& expected = *reinterpret_cast<TensorGuard*>(object)->expected;
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (keywords || count != expected.size()) Py_RETURN_FALSE;
  const auto local = c10::impl::tls_local_dispatch_key_set();
  Addresses seen(count);
  for (size_t i = 0; i < count; ++i) {
    if (!expected[i].holds(arguments[i], local)) Py_RETURN_FALSE;
    if (!seen.insert(arguments[i])) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

PyObject* create_tensor_guard(PyTypeObject* type, PyObject* arguments, PyObject* /*keywords*/) {
  HANDLE_TH_ERRORS
  PyObject *tensors = nullptr, *is_open = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &tensors, &PyTuple_Type, &is_open)) return nullptr;
  TORCH_CHECK_VALUE(PyTuple_GET_SIZE(tensors) == PyTuple_GET_SIZE(is_open), "expected two tuples of the same length");
  const auto local = c10::impl::tls_local_dispatch_key_set();
  auto expected = std::make_unique<std::vector<Expected>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* item = PyTuple_GET_ITEM(tensors, i);
    TORCH_CHECK_TYPE(THPVariable_Check(item), "expected tensors, not a ", Py_TYPE(item)->tp_name);
    const at::Tensor& tensor = THPVariable_Unpack(item);
    const auto keys = (tensor.key_set() | local.included_) - local.excluded_;
    expected->push_back(
        {Py_TYPE(item), keys, tensor.scalar_type(), tensor.device(), tensor.requires_grad(),
         PyTuple_GET_ITEM(is_open, i) == Py_True, tensor.sizes().vec(), tensor.strides().vec()});
    Py_INCREF(Py_TYPE(item));  // types of tensors live as long as torch
  }
  auto* self = reinterpret_cast<TensorGuard*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = check_tensors;
  self->expected = expected.release();
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

void destroy_tensor_guard(PyObject* object) {
  delete reinterpret_cast<TensorGuard*>(object)->expected;
  Py_TYPE(object)->tp_free(object);
}

// Whether none of the arguments has Python attributes.
PyObject* have_no_attributes(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* attributes = attributes_of(arguments[i]);
    if (attributes && PyDict_GET_SIZE(attributes)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// What an attribute of a module is expected to be.
enum class Kind { kAnything, kTraining, kEmpty, kMembers };

struct Attribute {
  PyObject* name;
  Kind kind;
  PyObject* members;  // a tuple of names, if it is a dict of members
};

// What a module is expected to be: its class, its mode, the names of its attributes in order, and of its members.
struct ModuleGuard {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* type;
  PyObject* training;  // True or False
  PyObject* names;  // keeps what the attributes refer to
  PyObject* groups;
  std::vector<Attribute>* attributes;
  std::vector<std::pair<Py_ssize_t, PyObject*>>* children;  // numbers of members that are modules, and their guards
};

bool same_name(PyObject* a, PyObject* b) {
  return a == b || (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && PyUnicode_Compare(a, b) == 0);
}

// Appends the values of a dict with exactly these keys, in this order.
bool take_group(PyObject* group, PyObject* names, PyObject* found) {
  if (!PyDict_Check(group) || PyDict_GET_SIZE(group) != PyTuple_GET_SIZE(names)) return false;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0, i = 0;
  while (PyDict_Next(group, &position, &key, &value)) {
    if (!same_name(key, PyTuple_GET_ITEM(names, i++)) || PyList_Append(found, value) < 0) return false;
  }
  return true;
}

// Appends the members of a module to a list, then its children's; false if something is not as expected.
bool take_members(const ModuleGuard* guard, PyObject* module, PyObject* found) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(module)) != guard->type) return false;
  PyObject* attributes = attributes_of(module);
  if (!attributes || PyDict_GET_SIZE(attributes) != static_cast<Py_ssize_t>(guard->attributes->size())) return false;
  const Py_ssize_t start = PyList_GET_SIZE(found);
  const Attribute* expected = guard->attributes->data();
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(attributes, &position, &key, &value); ++expected) {
    if (!same_name(key, expected->name)) return false;
    switch (expected->kind) {
      case Kind::kAnything:
        break;
      case Kind::kTraining:
        if (value != guard->training) return false;
        break;
      case Kind::kEmpty:
        if (!PyDict_Check(value) || PyDict_GET_SIZE(value)) return false;
        break;
      case Kind::kMembers:
        if (!take_group(value, expected->members, found)) return false;
    }
  }
  for (const auto& [number, child] : *guard->children) {
    if (!take_members(reinterpret_cast<ModuleGuard*>(child), PyList_GET_ITEM(found, start + number), found)) return false;
  }
  return true;
}

// The members of a module, and its children's after them, in a list; None if something is not as expected.
PyObject* members_of(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* /*keywords*/) {
  if (PyVectorcall_NARGS(flags) != 1) {
    PyErr_SetString(PyExc_TypeError, "expected one module");
    return nullptr;
  }
  auto found = pybind11::reinterpret_steal<pybind11::object>(PyList_New(0));
  if (!found) return nullptr;
  if (take_members(reinterpret_cast<ModuleGuard*>(object), arguments[0], found.ptr())) return found.release().ptr();
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

extern PyTypeObject module_guard_type;

// Compare the member of this number too, by a guard of its own.
PyObject* add_child(PyObject* object, PyObject* arguments) {
  Py_ssize_t number = 0;
  PyObject* child = nullptr;
  if (!PyArg_ParseTuple(arguments, "nO!", &number, &module_guard_type, &child)) return nullptr;
  reinterpret_cast<ModuleGuard*>(object)->children->emplace_back(number, Py_NewRef(child));
  Py_RETURN_NONE;
}

// Takes the class, the mode, a tuple of the names of all attributes, and a tuple that has for each of them: a tuple of
// names if it is a dict of members, True if it is a dict that must be empty, False if it is the mode, None for anything.
PyObject* create_module_guard(PyTypeObject* type, PyObject* arguments, PyObject* /*keywords*/) {
  PyObject *module_type = nullptr, *training = nullptr, *names = nullptr, *groups = nullptr;
  if (!PyArg_ParseTuple(arguments, "OOO!O!", &module_type, &training, &PyTuple_Type, &names, &PyTuple_Type, &groups)) {
    return nullptr;
  }
  if (PyTuple_GET_SIZE(names) != PyTuple_GET_SIZE(groups)) {
    PyErr_SetString(PyExc_ValueError, "expected two tuples of the same length");
    return nullptr;
  }
  auto* self = reinterpret_cast<ModuleGuard*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = members_of;
  self->type = Py_NewRef(module_type);
  self->training = Py_NewRef(training);
  self->names = Py_NewRef(names);
  self->groups = Py_NewRef(groups);
  self->attributes = new std::vector<Attribute>();
  self->children = new std::vector<std::pair<Py_ssize_t, PyObject*>>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* group = PyTuple_GET_ITEM(groups, i);
    const Kind kind = PyTuple_Check(group) ? Kind::kMembers
        : group == Py_True                 ? Kind::kEmpty
        : group == Py_False                ? Kind::kTraining
                                           : Kind::kAnything;
    self->attributes->push_back({PyTuple_GET_ITEM(names, i), kind, group});
  }
  return reinterpret_cast<PyObject*>(self);
}

int traverse_module_guard(PyObject* object, visitproc visit, void* arg) {
  const auto* self = reinterpret_cast<ModuleGuard*>(object);
  Py_VISIT(self->type);
  if (self->children) {
    for (const auto& [number, child] : *self->children) Py_VISIT(child);
  }
  return 0;
}

int clear_module_guard(PyObject* object) {
  auto* self = reinterpret_cast<ModuleGuard*>(object);
  Py_CLEAR(self->type);
  Py_CLEAR(self->training);
  Py_CLEAR(self->names);
  Py_CLEAR(self->groups);
  if (self->attributes) self->attributes->clear();
  if (self->children) {
    for (const auto& [number, child] : *self->children) Py_DECREF(child);
    self->children->clear();
  }
  return 0;
}

void destroy_module_guard(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear_module_guard(object);
  delete reinterpret_cast<ModuleGuard*>(object)->attributes;
  delete reinterpret_cast<ModuleGuard*>(object)->children;
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef module_guard_methods[] = {
    {"add", add_child, METH_VARARGS, "Compare the member of this number too, by a guard of its own."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject tensor_guard_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject module_guard_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef functions[] = {
    {"have_no_attributes", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(have_no_attributes)), METH_FASTCALL,
     "Whether none of these objects has Python attributes."},
    {"moved", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(moved)), METH_FASTCALL,
     "The numbers of the tensors that are not in these places."},
    {"in_place", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(in_place)), METH_FASTCALL,
     "A tensor in the memory of one of these values that nothing else refers to, or None."},
    {nullptr, nullptr, 0, nullptr}};

// Makes a type of which objects are called, by the function that each has in `call`.
template <typename T>
void make_callable(PyTypeObject& type, const char* name, newfunc create, destructor destroy) {
  type.tp_name = name;
  type.tp_basicsize = sizeof(T);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(T, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = create;
  type.tp_dealloc = destroy;
}

// Has the garbage collector look at its objects.
void make_collected(PyTypeObject& type, traverseproc traverse, inquiry clear) {
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
}

// Adds TensorGuard, ModuleGuard, have_no_attributes, moved and in_place to the module; false with a Python error set.
bool add_guards(PyObject* module) {
  auto& tensors = tensor_guard_type;
  make_callable<TensorGuard>(tensors, "aotkit_native.TensorGuard", create_tensor_guard, destroy_tensor_guard);
  auto& modules = module_guard_type;
  make_callable<ModuleGuard>(modules, "aotkit_native.ModuleGuard", create_module_guard, destroy_module_guard);
  make_collected(modules, traverse_module_guard, clear_module_guard);
  modules.tp_methods = module_guard_methods;
  return PyType_Ready(&tensors) == 0 && PyType_Ready(&modules) == 0 &&
      PyModule_AddObjectRef(module, "TensorGuard", reinterpret_cast<PyObject*>(&tensors)) == 0 &&
      PyModule_AddObjectRef(module, "ModuleGuard", reinterpret_cast<PyObject*>(&modules)) == 0 &&
      PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace
