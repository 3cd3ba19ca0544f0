# cmake --install: libabele, the public headers, and the package that find_package(Abele) finds. docs/cpp.md shows its use.
if(SKBUILD)
  return()  # a wheel carries the libraries inside the Python package
endif()
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# A program brings its own LibTorch target, which AbeleConfig.cmake finds.
set_target_properties(abele PROPERTIES EXPORT_NAME abele INSTALL_RPATH "$ORIGIN;${ABELE_TORCH_DIR}/lib")
install(TARGETS abele EXPORT AbeleTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/abele DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)

set(ABELE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Abele)
install(EXPORT AbeleTargets NAMESPACE abele:: DESTINATION ${ABELE_PACKAGE_DIR} COMPONENT cpp)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/AbeleConfig.cmake.in ${CMAKE_BINARY_DIR}/AbeleConfig.cmake
                              INSTALL_DESTINATION ${ABELE_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/AbeleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/AbeleConfig.cmake ${CMAKE_BINARY_DIR}/AbeleConfigVersion.cmake
        DESTINATION ${ABELE_PACKAGE_DIR} COMPONENT cpp)
