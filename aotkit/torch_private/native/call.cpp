// The node of autograd around compiled graphs, in C++: what runtime/autograd_node.py's `differentiable` does, at a third of its cost.
//
// One `Differentiable` belongs to one compilation. Calling it with a list of inputs runs the forward graph and gives its
// outputs a `CompiledCall` as their grad_fn, which runs the backward graph.

#include "guards.h"
#include "relays.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

namespace {

using namespace torch::autograd;

// torch 2.11 counts references to nodes with std::shared_ptr, torch 2.13 with c10::intrusive_ptr.
using NodePointer = decltype(Edge::function);

template <typename N>
NodePointer owned(N* node) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    return NodePointer(node, [](auto* p) { deleteNode(p); });  // without recursion, however long the chain
  } else {
    return c10::intrusive_ptr<N>::unsafe_steal_from_new(node);
  }
}

// A reference that may be dropped by any thread.
class Reference {
 public:
  explicit Reference(PyObject* object) : object_(object) { Py_INCREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  ~Reference() {
    if (Py_IsInitialized()) {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(object_);
    }
  }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// The items of a list or tuple that a compiled graph returned.
class Items {
 public:
  explicit Items(PyObject* sequence)
      : fast_(made(PySequence_Fast(sequence, "a compiled graph must return a list or tuple"))) {}
  Py_ssize_t size() const { return PySequence_Fast_GET_SIZE(fast_.ptr()); }
  PyObject* operator[](Py_ssize_t i) const { return PySequence_Fast_GET_ITEM(fast_.ptr(), i); }
  const at::Tensor& tensor(Py_ssize_t i) const {
    PyObject* item = (*this)[i];
    TORCH_CHECK_TYPE(THPVariable_Check(item), "a compiled graph returned a ", Py_TYPE(item)->tp_name, ", not a tensor");
    return THPVariable_Unpack(item);
  }

 private:
  Object fast_;
};

// Whether a switch is on that the backward graph may not be made for.
bool is_switched() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  return at::GradMode::is_enabled() || at::globalContext().deterministicAlgorithms() ||
      !(c10::autocast_dispatch_keyset - local.excluded_).empty();
}

// Where a function that Dynamo captures runs a backward pass, Dynamo looks at each frame of Python in that thread: not
// at those of compiled graphs.
class OutsideDynamo {
 public:
  OutsideDynamo() : before_(made(switched(Py_None))) {}
  OutsideDynamo(const OutsideDynamo&) = delete;
  OutsideDynamo& operator=(const OutsideDynamo&) = delete;
  ~OutsideDynamo() {
    if (before_.ptr() == Py_None) return;
    const pybind11::error_scope kept;
    Py_XDECREF(switched(before_.ptr()));
  }

 private:
  static PyObject* switched(PyObject* callback) {
    static PyObject* const set = [] {
      Object found = pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame");
      return found.release().ptr();
    }();
    return PyObject_CallOneArg(set, callback);
  }

  Object before_;
};

struct Differentiable {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* forward;
  PyObject* backward;  // a `BackwardCalls` of runtime/autograd_node.py
  PyObject* run;  // its backward graph
  std::vector<bool>* differentiable;  // for each output whether it has a gradient
  std::vector<Py_ssize_t>* tangents;  // for each tangent, the output it belongs to
  std::vector<Py_ssize_t>* inputs;  // those that get gradients

  // Appends the tangents of the backward graph to the saved values, if they are as those of the last call were.
  bool take(PyObject* values, const std::vector<Object>& incoming) const {
    static PyObject* const name = PyUnicode_InternFromString("accepts");
    std::vector<PyObject*> taken;
    for (const auto i : *tangents) taken.push_back(incoming[i].ptr());
    const Object accepts = made(PyObject_GetAttr(backward, name));
    const Object is_accepted = made(PyObject_Vectorcall(accepts.ptr(), taken.data(), taken.size(), nullptr));
    if (is_accepted.ptr() != Py_True) return false;
    for (PyObject* tangent : taken) {
      if (PyList_Append(values, tangent) < 0) rethrow();
    }
    return true;
  }

  // As `BackwardCalls` gives them: it makes of the tangents what the graph takes, or refuses.
  Object gradients(PyObject* values, std::vector<Object>&& incoming) const {
    static PyObject* const name = PyUnicode_InternFromString("gradients");
    const Object given = made(PyTuple_New(static_cast<Py_ssize_t>(incoming.size())));
    for (size_t i = 0; i < incoming.size(); ++i) {
      PyTuple_SET_ITEM(given.ptr(), static_cast<Py_ssize_t>(i), incoming[i].release().ptr());
    }
    return made(PyObject_CallMethodObjArgs(backward, name, values, given.ptr(), nullptr));
  }
};

struct CompiledCall : public Node {
  explicit CompiledCall(PyObject* owner) : owner_(owner) {}

  std::string name() const override { return "CompiledBackward"; }

  void save(const at::Tensor& tensor) {
    // A saved view would keep its base alive.
    const bool is_output = tensor.grad_fn().get() == this;
    saved_.emplace_back(tensor.is_view() && !is_output ? tensor.detach() : tensor, is_output);
  }

  void release_variables() override {
    for (auto& saved : saved_) saved.reset_data();
  }

  variable_list apply(variable_list&& incoming) override {
    pybind11::gil_scoped_acquire gil;
    const OutsideDynamo outside;
    const auto& owner = *reinterpret_cast<const Differentiable*>(owner_.get());
    const Object values = saved_values();
    std::vector<Object> given;  // None where undefined
    given.reserve(incoming.size());
    for (const auto& tangent : incoming) given.push_back(made(THPVariable_Wrap(tangent)));
    incoming.clear();
    const bool is_taken = !is_switched() && owner.take(values.ptr(), given);
    if (is_taken) given.clear();
    const Object results = is_taken ? made(PyObject_CallOneArg(owner.run, values.ptr()))
                                    : owner.gradients(values.ptr(), std::move(given));
    const Items gradients(results.ptr());
    variable_list found;
    found.reserve(num_outputs());
    for (const auto i : *owner.inputs) {
      TORCH_CHECK_INDEX(i < gradients.size(), "a backward graph returned ", gradients.size(), " gradients");
      found.push_back(gradients[i] == Py_None ? at::Tensor() : gradients.tensor(i));
    }
    return found;
  }

 private:
  Object saved_values() {
    Object values = made(PyList_New(static_cast<Py_ssize_t>(saved_.size())));
    const auto self = getptr();
    for (size_t i = 0; i < saved_.size(); ++i) {
      PyList_SET_ITEM(values.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(saved_[i].unpack(self)));
    }
    if (!get_current_graph_task_keep_graph()) release_variables();  // the backward graph frees each after its last use
    return values;
  }

  Reference owner_;
  std::vector<SavedVariable> saved_;
};

PyObject* call(PyObject* object, PyObject* const* arguments, size_t count, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<Differentiable*>(object);
  PyObject* given = list_of(arguments, count, keywords);
  auto* compiled = new CompiledCall(object);
  const NodePointer node = owned(compiled);
  edge_list edges;
  edges.reserve(self->inputs->size());
  for (const auto i : *self->inputs) {
    TORCH_CHECK_INDEX(i < PyList_GET_SIZE(given), "expected more than ", i, " tensors");
    PyObject* input = PyList_GET_ITEM(given, i);
    TORCH_CHECK_TYPE(THPVariable_Check(input), "expected tensors, not a ", Py_TYPE(input)->tp_name);
    edges.push_back(impl::gradient_edge(THPVariable_Unpack(input)));
  }
  node->set_next_edges(std::move(edges));
  PyObject** first = PySequence_Fast_ITEMS(given);
  const std::vector<PyObject*> inputs(first, first + PyList_GET_SIZE(given));  // the graph may empty the list
  Object results;
  {
    const at::AutoGradMode no_grad(false);
    results = made(PyObject_CallOneArg(self->forward, given));
  }
  const Items values(results.ptr());
  const auto outputs = static_cast<Py_ssize_t>(self->differentiable->size());
  TORCH_CHECK(values.size() >= outputs, "a forward graph returned ", values.size(), " values, of ", outputs, " outputs");
  Object returned = made(PyTuple_New(outputs));
  for (Py_ssize_t i = 0; i < outputs; ++i) {
    const at::Tensor& tensor = values.tensor(i);
    const auto number = node->add_input_metadata(tensor);
    PyObject* result = Py_NewRef(values[i]);
    PyTuple_SET_ITEM(returned.ptr(), i, result);
    if (!(*self->differentiable)[i]) continue;
    if (std::find(inputs.begin(), inputs.end(), result) == inputs.end()) {
      impl::set_gradient_edge(tensor, {node, number});
    } else {  // a backend that found nothing to do; the caller's tensor keeps its own edge
      const at::Tensor own = tensor.detach();
      impl::set_gradient_edge(own, {node, number});
      PyTuple_SetItem(returned.ptr(), i, THPVariable_Wrap(own));
    }
  }
  for (Py_ssize_t i = outputs; i < values.size(); ++i) compiled->save(values.tensor(i));
  return returned.release().ptr();
  END_HANDLE_TH_ERRORS
}

// Takes the forward graph, a `BackwardCalls`, the number of outputs, and the numbers of the outputs that have tangents, in
// their order, and of the inputs that get gradients.
PyObject* create(PyTypeObject* type, PyObject* arguments, PyObject* /*keywords*/) {
  PyObject *forward = nullptr, *backward = nullptr, *tangents = nullptr, *inputs = nullptr;
  Py_ssize_t outputs = 0;
  if (!PyArg_ParseTuple(
          arguments, "OOnO!O!", &forward, &backward, &outputs, &PyTuple_Type, &tangents, &PyTuple_Type, &inputs)) {
    return nullptr;
  }
  auto of_tangents = numbers_of(tangents, outputs);
  auto of_inputs = of_tangents ? numbers_of(inputs, PY_SSIZE_T_MAX) : nullptr;
  if (!of_inputs) return nullptr;
  const Object run = pybind11::reinterpret_steal<Object>(PyObject_GetAttrString(backward, "run"));
  if (!run) return nullptr;
  auto* self = reinterpret_cast<Differentiable*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = call;
  self->forward = Py_NewRef(forward);
  self->backward = Py_NewRef(backward);
  self->run = Py_NewRef(run.ptr());
  self->differentiable = new std::vector<bool>(outputs);
  for (const auto i : *of_tangents) (*self->differentiable)[i] = true;
  self->tangents = of_tangents.release();
  self->inputs = of_inputs.release();
  return reinterpret_cast<PyObject*>(self);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  Py_VISIT(self->forward);
  Py_VISIT(self->backward);
  Py_VISIT(self->run);
  return 0;
}

int clear(PyObject* object) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  Py_CLEAR(self->forward);
  Py_CLEAR(self->backward);
  Py_CLEAR(self->run);
  return 0;
}

void destroy(PyObject* object) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  delete self->differentiable;
  delete self->tangents;
  delete self->inputs;
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject differentiable_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "aotkit_native", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_aotkit_native() {
  auto& type = differentiable_type;
  make_callable<Differentiable>(type, "aotkit_native.Differentiable", create, destroy);
  make_collected(type, traverse, clear);
  if (PyType_Ready(&type) < 0) return nullptr;
  PyObject* module = PyModule_Create(&definition);
  if (!module) return nullptr;
  if (PyModule_AddObjectRef(module, "Differentiable", reinterpret_cast<PyObject*>(&type)) < 0 || !add_guards(module) ||
      !add_relays(module)) {
    Py_CLEAR(module);
  }
  return module;
}
