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
  using namespace abele::bind;
  for (Register* add :
       {registerErrors,       registerGenerators,     registerGil,         registerAnnotate,   registerModuleNames,
        registerLog,          registerSessionOptions, registerStrategies,  registerOptions,    registerIpuConfig,
        registerDevices,      registerOptimizerSpec,  registerTurns,       registerSession,    registerOptimizer,
        registerModel,        registerVerify,         registerProgramFile, registerCheckpoint, registerWeights,
        registerSavedProgram, registerServer,         registerSimulate,    registerOperators,  registerProcesses,
        registerTracing})
    add(module);
}
