// abele._abele: the native module of both Python packages.
#include "base/error.h"
#include "bind/bind.h"

PYBIND11_MODULE(_abele, module) {
  module.doc() = "Native part of Abele. Use the packages poptorch or abele.";
  abele::setPhrases({
#define ABELE_PHRASE(cpp, python) {cpp, python},
#include "bind/phrases.def"
#undef ABELE_PHRASE
  });
  abele::bind::registerErrors(module);
  abele::bind::registerGenerators(module);
  abele::bind::registerGil(module);
  abele::bind::registerAnnotate(module);
  abele::bind::registerLog(module);
  abele::bind::registerSessionOptions(module);
  abele::bind::registerStrategies(module);
  abele::bind::registerOptions(module);
  abele::bind::registerDevices(module);
  abele::bind::registerOptimizerSpec(module);
  abele::bind::registerTurns(module);
  abele::bind::registerSession(module);
  abele::bind::registerOptimizer(module);
  abele::bind::registerModel(module);
  abele::bind::registerVerify(module);
  abele::bind::registerProgramFile(module);
  abele::bind::registerCheckpoint(module);
  abele::bind::registerWeights(module);
  abele::bind::registerSavedProgram(module);
  abele::bind::registerServer(module);
  abele::bind::registerSimulate(module);
  abele::bind::registerOperators(module);
  abele::bind::registerOffload(module);
  abele::bind::registerProcesses(module);
  abele::bind::registerTracing(module);
}
