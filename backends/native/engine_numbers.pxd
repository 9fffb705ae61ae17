# It declares nothing: the module is compiled as it is.
